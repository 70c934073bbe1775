// Reads the messages that the bench wrote.

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
)

// message is a message of the load. Its number is its position in the file.
type message struct {
	// at is a due time in epoch milliseconds, or a delay in milliseconds.
	at      int64
	key     string
	payload []byte
	headers map[string]string
}

// readMessages reads the messages file of the bench. It contains a JSON object with the common
// headers, then the time, key and payload of each message. A length precedes each field except the
// time.
func readMessages(file string) ([]message, error) {
	rest, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	next := func() []byte {
		if len(rest) < 4 {
			err = errors.New("it ends in the middle of a message")
			return nil
		}
		length := int(binary.LittleEndian.Uint32(rest))
		if len(rest)-4 < length {
			err = errors.New("it ends in the middle of a message")
			return nil
		}
		field := rest[4 : 4+length]
		rest = rest[4+length:]
		return field
	}
	var common map[string]string
	if err := json.Unmarshal(next(), &common); err != nil {
		return nil, err
	}
	var messages []message
	for len(rest) >= 8 && err == nil {
		at := int64(binary.LittleEndian.Uint64(rest))
		rest = rest[8:]
		key := string(next())
		headers := map[string]string{"key": key}
		for name, value := range common {
			headers[name] = value
		}
		messages = append(messages, message{at: at, key: key, payload: next(), headers: headers})
	}
	return messages, err
}
