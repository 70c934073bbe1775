// Schedules messages with BullMQ, and receives the due ones.

import { once } from 'node:events'
import { setTimeout } from 'node:timers/promises'
import { Worker as Thread } from 'node:worker_threads'
import { Queue } from 'bullmq'
import { data } from './message.js'

// Jobs of one bulk, and bulks in flight.
const batch = 500
const inFlight = 2

// Threads that take jobs. Node.js runs a program in one thread, and BullMQ recommends several workers.
const threads = 2

// Schedules all messages, at full speed or at the given rate. It records when each one is due.
export async function store(connection, name, messages, due, { rate, absolute }) {
  const queue = new Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } })
  const bulks = new Set()
  const begun = Date.now()
  let number = 0
  while (number < messages.length) {
    const until = rate > 0 ? Math.floor((Date.now() - begun) * rate / 1_000) : messages.length
    const some = messages.slice(number, Math.min(until, number + batch))
    if (some.length === 0) {
      await setTimeout(1)
      continue
    }
    const timestamp = Date.now()
    const jobs = some.map((message, at) => {
      due[number + at] = absolute ? message.at : timestamp + message.at
      const delay = Math.max(0, due[number + at] - timestamp)
      return { name: 'message', data: data(message), opts: { timestamp, delay } }
    })
    number += some.length
    const bulk = queue.addBulk(jobs).finally(() => bulks.delete(bulk))
    bulks.add(bulk)
    if (bulks.size === inFlight) await Promise.race(bulks)
  }
  await Promise.all(bulks)
  await queue.close()
}

export async function remove(connection, name) {
  const queue = new Queue(name, { connection })
  await queue.obliterate({ force: true })
  await queue.close()
}

// Threads that pass every due message to a ledger.
export class Takers {
  constructor(connection, file) {
    const options = { workerData: { connection, file } }
    this.threads = Array.from({ length: threads }, () => new Thread(new URL('taker.js', import.meta.url), options))
  }

  start(name, ledger) {
    this.threads.forEach(thread => thread.postMessage({ name, memory: ledger.memory }))
  }

  async stop() {
    for (const thread of this.threads) {
      thread.postMessage('stop')
      await once(thread, 'message')
    }
  }
}
