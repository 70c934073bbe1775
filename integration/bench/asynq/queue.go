// Schedules messages with asynq, and receives the due ones.

package main

import (
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

const kind = "message"

// workers is the number of concurrent requests. An asynq request carries one task, so concurrency
// determines the speed.
const workers = 64

// The defaults of these intervals are 5 s and 1 s, which is too long for this measurement.
const (
	lookForDue  = 100 * time.Millisecond
	lookForTask = 5 * time.Millisecond
)

// store schedules all messages, at full speed or at the given rate. It records when each one is
// due.
func store(redis asynq.RedisClientOpt, messages []message, due []int64, rate int, absolute bool) error {
	client := asynq.NewClient(redis)
	defer client.Close()
	numbers := make(chan int, workers)
	failures := make(chan error, workers)
	var group sync.WaitGroup
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := range numbers {
				if err := schedule(client, number, messages[number], due[number]); err != nil {
					select {
					case failures <- err:
					default:
					}
				}
			}
		}()
	}
	begun := time.Now()
	for number, message := range messages {
		for rate > 0 && int64(number) >= time.Since(begun).Milliseconds()*int64(rate)/1000 {
			time.Sleep(time.Millisecond)
		}
		due[number] = message.at
		if !absolute {
			due[number] += time.Now().UnixMilli()
		}
		numbers <- number
	}
	close(numbers)
	group.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

// schedule makes a task of a message. asynq truncates times to whole seconds, so the next full
// second is the first one that is not early.
func schedule(client *asynq.Client, number int, message message, due int64) error {
	task := asynq.NewTaskWithHeaders(kind, message.payload, message.headers)
	at := time.Unix((due+999)/1000, 0)
	_, err := client.Enqueue(task, asynq.TaskID(strconv.Itoa(number)), asynq.ProcessAt(at))
	return err
}

// take starts a server that passes every due message to the ledger.
func take(redis asynq.RedisClientOpt, taken *ledger) (*asynq.Server, error) {
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:              workers,
		DelayedTaskCheckInterval: lookForDue,
		TaskCheckInterval:        lookForTask,
		LogLevel:                 asynq.ErrorLevel,
	})
	return server, server.Start(asynq.HandlerFunc(taken.handle))
}
