package main

import (
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

const kind = "message"

// workers is how many requests are under way at once: asynq has none that carries several tasks, so that its speed comes from this.
const workers = 64

// The looks for what is due, and for what to do, are usually 5 s and 1 s apart: too far for what is measured.
const (
	lookForDue  = 100 * time.Millisecond
	lookForTask = 5 * time.Millisecond
)

// store schedules all messages: as fast as it can, or so many a second. It writes down when each is due.
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

// schedule makes a task of a message. asynq counts in whole seconds and cuts off what is beyond them: the next full second is the first
// that is not early.
func schedule(client *asynq.Client, number int, message message, due int64) error {
	task := asynq.NewTaskWithHeaders(kind, message.payload, message.headers)
	at := time.Unix((due+999)/1000, 0)
	_, err := client.Enqueue(task, asynq.TaskID(strconv.Itoa(number)), asynq.ProcessAt(at))
	return err
}

// take hands everything that is due to the ledger.
func take(redis asynq.RedisClientOpt, taken *ledger) (*asynq.Server, error) {
	server := asynq.NewServer(redis, asynq.Config{
		Concurrency:              workers,
		DelayedTaskCheckInterval: lookForDue,
		TaskCheckInterval:        lookForTask,
		LogLevel:                 asynq.ErrorLevel,
	})
	return server, server.Start(asynq.HandlerFunc(taken.handle))
}
