// Command asynq keeps messages in Redis until they are due, with the Go library asynq.
//
// `make bench` runs it for comparison with Postdate. It checks the messages that arrive. The bench
// measures its processor time.
//
//	asynq -redis ADDR -messages FILE store    puts all messages into Redis
//	asynq -redis ADDR -messages FILE drain    takes all messages out of Redis
//	asynq -redis ADDR -messages FILE steady   does both at once, at the given rate
//
// It prints `ready`, starts when it reads a line, and prints the outcome as one line of JSON. It
// exits when its standard input closes.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hibiken/asynq"
)

// outcome is the JSON that the bench reads.
type outcome struct {
	Seconds  float64 `json:"seconds"`
	Lost     int     `json:"lost"`
	Doubled  int     `json:"doubled"`
	Early    int     `json:"early"`
	Changed  int     `json:"changed"`
	Lateness []int64 `json:"lateness"`
}

// silence is the time without an arrival after which missing messages count as lost.
const silence = 30 * time.Second

func main() {
	log.SetFlags(0)
	addr := flag.String("redis", "", "host and port of Redis")
	file := flag.String("messages", "", "the messages, as the bench wrote them")
	rate := flag.Int("rate", 0, "messages a second of a steady load")
	absolute := flag.Bool("absolute", false, "each message has a due, not a delay")
	flag.Parse()
	messages, err := readMessages(*file)
	if err != nil {
		log.Fatalf("the messages cannot be read: %v", err)
	}
	redis := asynq.RedisClientOpt{Addr: *addr, PoolSize: 2 * workers}
	commands := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := commands.ReadString('\n'); err != nil {
		return
	}
	result, err := run(flag.Arg(0), redis, messages, *rate, *absolute)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
	_, _ = commands.ReadString('\n')
}

func run(mode string, redis asynq.RedisClientOpt, messages []message, rate int, absolute bool) (outcome, error) {
	begun := time.Now()
	due := make([]int64, len(messages))
	switch mode {
	case "store":
		err := store(redis, messages, due, rate, absolute)
		return outcome{Seconds: time.Since(begun).Seconds()}, err
	case "drain":
		for number, message := range messages {
			due[number] = message.at
		}
		taken := newLedger(messages)
		server, err := take(redis, taken)
		if err != nil {
			return outcome{}, err
		}
		defer server.Stop()
		taken.wait()
		return taken.judge(due, begun), nil
	case "steady":
		taken := newLedger(messages)
		server, err := take(redis, taken)
		if err != nil {
			return outcome{}, err
		}
		defer server.Stop()
		if err := store(redis, messages, due, rate, absolute); err != nil {
			return outcome{}, err
		}
		taken.wait()
		return taken.judge(due, begun), nil
	}
	return outcome{}, errors.New("what is to be done? store, drain or steady")
}
