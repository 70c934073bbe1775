// Records the messages that arrive, and checks them. All threads share the memory of the ledger.

import { setTimeout } from 'node:timers/promises'
import { data } from './message.js'

// Milliseconds without an arrival after which missing messages count as lost.
const silence = 30_000

// Positions of the counters.
const DOUBLED = 0
const CHANGED = 1
const LEFT = 2

export class Ledger {
  // `memory`: that of the ledger in another thread.
  constructor(messages, memory) {
    const count = messages.length
    this.messages = messages
    this.memory = memory ?? {
      arrived: new SharedArrayBuffer(8 * count),
      counters: new SharedArrayBuffer(12)
    }
    this.arrived = new BigInt64Array(this.memory.arrived)
    this.counters = new Int32Array(this.memory.counters)
    if (!memory) this.counters[LEFT] = count
  }

  note(job) {
    const now = Date.now()
    const number = Number(job.payload?.n)
    const sent = this.messages[number]
    if (!sent) Atomics.add(this.counters, CHANGED, 1)
    else if (Atomics.compareExchange(this.arrived, number, 0n, BigInt(now)) !== 0n) Atomics.add(this.counters, DOUBLED, 1)
    else {
      if (JSON.stringify(job) !== JSON.stringify(data(sent))) Atomics.add(this.counters, CHANGED, 1)
      Atomics.sub(this.counters, LEFT, 1)
    }
  }

  // Returns when all messages arrived, or when no message arrives any more.
  async wait() {
    let [left, last] = [this.left(), Date.now()]
    while (left > 0 && Date.now() - last < silence) {
      await setTimeout(1)
      const now = this.left()
      if (now !== left) [left, last] = [now, Date.now()]
    }
  }

  left() {
    return Atomics.load(this.counters, LEFT)
  }

  // The outcome that the bench reads.
  judge(due, begun) {
    const late = []
    let last = begun
    this.arrived.forEach((arrived, number) => {
      if (arrived === 0n) return
      last = Math.max(last, Number(arrived))
      late.push(Number(arrived) - due[number])
    })
    return {
      seconds: (last - begun) / 1e3,
      lost: this.left(),
      doubled: this.counters[DOUBLED],
      early: late.filter(late => late < 0).length,
      changed: this.counters[CHANGED],
      lateness: late.sort((one, other) => one - other)
    }
  }
}
