// The recipes of docs/recipes, with short delays. It ends with an error if a message is missing, repeated or too much.
//
//	cd docs/clients/go && go run ./recipes [BROKER [SECONDS]]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log"
	"maps"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	ctx     = context.Background()
	run     = fmt.Sprintf("go-%d", time.Now().UnixNano())
	client  *kgo.Client
	answers *kgo.Client
)

// connect uses the defaults for sending: idempotent, with the partitions of Java clients.
func connect(broker string) (*kgo.Client, error) {
	return kgo.NewClient(
		kgo.SeedBrokers(broker),
		kgo.ConsumerGroup(run),
		kgo.ConsumeTopics("orders"),
		kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
}

// send returns when the in-sync replicas have the record. A repeat after an error may store it twice.
func send(key string, value []byte, headers map[string]string) error {
	record := &kgo.Record{Topic: "orders.delayed", Key: []byte(key), Value: value}
	for name, text := range headers {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(text)})
	}
	return client.ProduceSync(ctx, record).FirstErr()
}

// Order timeout.

func orderPlaced(order, timeout string) error {
	return send(order, []byte("close"), map[string]string{"postdate-after": timeout, "postdate-id": "close:" + order})
}

func closeUnlessPaid(order, origin string) {
	// In your database, these lines are one transaction.
	if done[origin] {
		return
	}
	done[origin] = true
	if !paid[order] {
		closed = append(closed, order)
	}
}

// Cancel on payment.

func orderPaid(order string) error {
	paid[order] = true
	return send(order, nil, map[string]string{"postdate-op": "cancel", "postdate-id": "close:" + order})
}

// Cancel on payment, with an answer.

// readAnswersFromNow joins no group: each process reads all answers and takes its own.
func readAnswersFromNow(broker string) (*kgo.Client, error) {
	return kgo.NewClient(
		kgo.SeedBrokers(broker),
		kgo.ConsumeTopics("orders.answers"),
		// A minute earlier, because clocks differ.
		kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().Add(-time.Minute).UnixMilli())),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
}

// cancelAndWait returns the outcome. It is empty if it is not known in time.
func cancelAndWait(order string, timeout time.Duration) (string, error) {
	request := fmt.Sprintf("%s:%d", order, time.Now().UnixNano())
	err := send(order, nil, map[string]string{
		"postdate-op":         "cancel",
		"postdate-id":         "close:" + order,
		"postdate-reply-to":   "orders.answers",
		"postdate-request-id": request,
	})
	if err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for limited.Err() == nil {
		for _, record := range answers.PollFetches(limited).Records() {
			var answer struct {
				Outcome   string `json:"outcome"`
				RequestID string `json:"request_id"`
			}
			if json.Unmarshal(record.Value, &answer) == nil && answer.RequestID == request {
				return answer.Outcome, nil
			}
		}
	}
	return "", nil
}

// Reminder.

func appointmentSet(appointment string, start time.Time, leads map[string]time.Duration) error {
	for name, lead := range leads {
		due := start.Add(-lead)
		headers := map[string]string{"postdate-id": name + ":" + appointment}
		if due.After(time.Now()) {
			headers["postdate-at"] = strconv.FormatInt(due.UnixMilli(), 10)
		} else {
			headers["postdate-op"] = "cancel"
		}
		if err := send(appointment, []byte("remind "+start.Format(time.RFC3339)), headers); err != nil {
			return err
		}
	}
	return nil
}

// Debounce.

func documentEdited(document, quiet string) error {
	return send(document, []byte("index"), map[string]string{"postdate-after": quiet, "postdate-id": "index:" + document})
}

func documentEditedOften(document string, window time.Duration) error {
	number := time.Now().UnixMilli() / window.Milliseconds()
	return send(document, []byte("index-window"), map[string]string{
		"postdate-at": strconv.FormatInt((number+1)*window.Milliseconds(), 10),
		"postdate-id": fmt.Sprintf("index:%s:%d", document, number),
	})
}

// Retry with backoff.

func retry(key, value string, headers map[string]string, first, longest time.Duration, attempts int) error {
	attempt := 2
	if before, err := strconv.Atoi(headers["attempt"]); err == nil {
		attempt = before + 1
	}
	if attempt > attempts {
		givenUp = append(givenUp, key) // Write it to a topic of its own.
		return nil
	}
	delay := min(float64(first.Milliseconds())*float64(int64(1)<<min(attempt-2, 40)), float64(longest.Milliseconds())) * (0.8 + 0.4*rand.Float64())
	kept := map[string]string{}
	// The origin of the first attempt: each attempt is a new record with an origin of its own.
	kept["first-origin"] = headers["postdate-origin"]
	maps.Copy(kept, headers)
	maps.DeleteFunc(kept, func(name, _ string) bool { return strings.HasPrefix(name, "postdate-") })
	kept["attempt"] = strconv.Itoa(attempt)
	kept["postdate-after"] = strconv.Itoa(int(delay))
	// An id has no `/`, and at most 128 characters.
	name := fnv.New128a()
	name.Write([]byte(kept["first-origin"]))
	kept["postdate-id"] = fmt.Sprintf("retry:%x:%d", name.Sum(nil), attempt)
	return send(key, []byte(value), kept)
}

// The consumer of all recipes.

func consume(handle func(key, value string, headers map[string]string) error, duration time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	for limited.Err() == nil {
		fetches := client.PollFetches(limited)
		for _, failed := range fetches.Errors() {
			if limited.Err() == nil {
				return failed.Err
			}
		}
		for _, record := range fetches.Records() {
			// A record that Postdate did not deliver has no origin.
			headers := map[string]string{"postdate-origin": fmt.Sprintf("%s/%d/%d", record.Topic, record.Partition, record.Offset)}
			for _, header := range record.Headers {
				headers[header.Key] = string(header.Value)
			}
			if err := handle(string(record.Key), string(record.Value), headers); err != nil {
				return err
			}
			// After the work: a crash before this line repeats the record.
			if err := client.CommitRecords(ctx, record); err != nil {
				return err
			}
		}
	}
	return nil
}

// The run.

var (
	done, paid      = map[string]bool{}, map[string]bool{}
	closed, givenUp []string
	arrived         = map[string]int{}
)

func handle(key, value string, headers map[string]string) error {
	if !strings.HasPrefix(key, run) {
		return nil
	}
	arrived[strings.TrimPrefix(key, run)+" "+strings.Fields(value)[0]]++
	attempt, _ := strconv.Atoi(headers["attempt"])
	switch {
	case value == "close":
		closeUnlessPaid(key, headers["postdate-origin"])
		closeUnlessPaid(key, headers["postdate-origin"])
	case value == "charge" && attempt < 3:
		return retry(key, value, headers, 500*time.Millisecond, time.Hour, 10)
	case value == "refund":
		return retry(key, value, headers, 500*time.Millisecond, time.Hour, 2)
	}
	return nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	broker := "127.0.0.1:9092"
	if len(os.Args) > 1 {
		broker = os.Args[1]
	}
	var err error
	client, err = connect(broker)
	check(err)
	defer client.Close()
	answers, err = readAnswersFromNow(broker)
	check(err)
	defer answers.Close()

	leads := map[string]time.Duration{"day": 24 * time.Hour, "soon": 2 * time.Second}
	now := time.Now()
	for _, order := range []string{"-unpaid", "-paid", "-late", "-asked"} {
		check(orderPlaced(run+order, "5s"))
	}
	check(orderPaid(run + "-paid"))
	for _, expected := range []string{"cancelled", "not_found"} {
		outcome, err := cancelAndWait(run+"-asked", 10*time.Second)
		check(err)
		if outcome != expected {
			log.Fatalf("the answer is %q instead of %q", outcome, expected)
		}
	}
	paid[run+"-late"] = true // Paid, and the cancel comes too late.
	check(appointmentSet(run+"-visit", now.Add(8*time.Second), leads))
	check(appointmentSet(run+"-visit", now.Add(9*time.Second), leads))
	for range 5 {
		check(documentEdited(run+"-text", "3s"))
		check(documentEditedOften(run+"-text", 4*time.Second))
	}
	check(send(run+"-charge", []byte("charge"), map[string]string{"postdate-after": "500ms"}))
	// Straight to the target, with a null header.
	refund := &kgo.Record{Topic: "orders", Key: []byte(run + "-refund"), Value: []byte("refund"), Headers: []kgo.RecordHeader{{Key: "trace"}}}
	check(client.ProduceSync(ctx, refund).FirstErr())
	duration := 12 * time.Second
	if len(os.Args) > 2 {
		duration, err = time.ParseDuration(os.Args[2] + "s")
		check(err)
	}
	check(consume(handle, duration))

	windows := arrived["-text index-window"]
	delete(arrived, "-text index-window")
	expected := map[string]int{"-unpaid close": 1, "-late close": 1, "-visit remind": 1, "-text index": 1, "-charge charge": 3, "-refund refund": 2}
	if !maps.Equal(arrived, expected) || windows < 1 || windows > 2 || fmt.Sprint(closed, givenUp) != fmt.Sprintf("[%s-unpaid] [%s-refund]", run, run) {
		log.Fatalf("arrived %v and %d windows, closed %v, given up %v", arrived, windows, closed, givenUp)
	}
	fmt.Println("each recipe has done what it says")
}
