// Records the messages that arrive, and checks them.

package main

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// ledger records the messages that arrive and checks them.
type ledger struct {
	messages []message

	lock    sync.Mutex
	arrived []int64
	doubled int
	changed int
	left    int
	last    time.Time
}

func newLedger(messages []message) *ledger {
	return &ledger{messages: messages, arrived: make([]int64, len(messages)), left: len(messages), last: time.Now()}
}

func (l *ledger) handle(ctx context.Context, task *asynq.Task) error {
	now := time.Now()
	id, _ := asynq.GetTaskID(ctx)
	number, err := strconv.Atoi(id)
	l.lock.Lock()
	defer l.lock.Unlock()
	l.last = now
	switch {
	case err != nil || number < 0 || number >= len(l.messages):
		l.changed++
	case l.arrived[number] != 0:
		l.doubled++
	default:
		sent := l.messages[number]
		if !bytes.Equal(task.Payload(), sent.payload) || task.Headers()["key"] != sent.key {
			l.changed++
		}
		l.arrived[number] = now.UnixMilli()
		l.left--
	}
	return nil
}

// wait returns when all messages arrived, or when no message arrives any more.
func (l *ledger) wait() {
	for {
		l.lock.Lock()
		over := l.left == 0 || time.Since(l.last) > silence
		l.lock.Unlock()
		if over {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (l *ledger) judge(due []int64, begun time.Time) outcome {
	l.lock.Lock()
	defer l.lock.Unlock()
	judged := outcome{Seconds: l.last.Sub(begun).Seconds(), Lost: l.left, Doubled: l.doubled, Changed: l.changed}
	for number, at := range l.arrived {
		if at == 0 {
			continue
		}
		if at < due[number] {
			judged.Early++
		}
		judged.Lateness = append(judged.Lateness, at-due[number])
	}
	slices.Sort(judged.Lateness)
	return judged
}
