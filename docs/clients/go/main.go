// Sends a message that is due in ten seconds, and waits for it.
//
//	cd docs/clients/go && go run . [BROKER]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	broker := "127.0.0.1:9092"
	if len(os.Args) > 1 {
		broker = os.Args[1]
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics("orders"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	key := fmt.Sprintf("go-%d", time.Now().UnixNano())
	record := &kgo.Record{
		Topic:   "orders.delayed",
		Key:     []byte(key),
		Value:   []byte("close it unless it was paid"),
		Headers: []kgo.RecordHeader{{Key: "postdate-after", Value: []byte("10s")}},
	}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		log.Fatal(err)
	}
	sent := time.Now()
	fmt.Printf("sent %s, due in ten seconds\n", key)

	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			log.Fatal("it did not arrive within 30 s: is the service running?")
		}
		for _, arrived := range fetches.Records() {
			if string(arrived.Key) != key {
				continue
			}
			headers := map[string]string{}
			for _, header := range arrived.Headers {
				headers[header.Key] = string(header.Value)
			}
			fmt.Printf("arrived after %.1f s: %s %v\n", time.Since(sent).Seconds(), arrived.Value, headers)
			return
		}
	}
}
