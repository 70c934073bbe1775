// Reads the messages that the bench wrote.

import { readFileSync } from 'node:fs'

// The file contains a JSON object with the common headers, then the time, key and payload of each message. A length
// precedes each field except the time. `at` is a due time in epoch milliseconds, or a delay in milliseconds.
export function readMessages(file) {
  const bytes = readFileSync(file)
  let next = 0
  const field = () => {
    const from = next + 4
    next = from + bytes.readUInt32LE(next)
    return bytes.toString('utf8', from, next)
  }
  const headers = JSON.parse(field())
  const messages = []
  while (next < bytes.length) {
    const at = Number(bytes.readBigInt64LE(next))
    next += 8
    messages.push({ at, key: field(), payload: field(), headers })
  }
  return messages
}

// BullMQ keeps the data of a job as JSON. The payload is JSON too, so its bytes stay the same without quotes around it.
export function data({ key, headers, payload }) {
  return { key, headers, payload: JSON.parse(payload) }
}
