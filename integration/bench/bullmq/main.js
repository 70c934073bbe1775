// Keeps messages in Redis until they are due, with the library BullMQ.
//
// `make bench` runs it for comparison with Postdate. It checks the messages that arrive. The bench measures its processor
// time. The arguments and the protocol are those of asynq/main.go.

import { createInterface } from 'node:readline/promises'
import { parseArgs } from 'node:util'
import { Ledger } from './ledger.js'
import { readMessages } from './message.js'
import { remove, store, Takers } from './queue.js'

// Messages that pass through another queue before the measurement, because compiled code is faster.
const warmUp = 20_000

const { values, positionals: [mode] } = parseArgs({
  allowPositionals: true,
  options: {
    redis: { type: 'string' },
    messages: { type: 'string' },
    rate: { type: 'string', default: '0' },
    absolute: { type: 'boolean', default: false }
  }
})
const [host, port] = values.redis.split(':')
const connection = { host, port: Number(port), maxRetriesPerRequest: null }
const takers = new Takers(connection, values.messages)

async function run(mode, name, messages, pace) {
  const begun = Date.now()
  const due = messages.map(message => message.at)
  if (mode === 'store') {
    await store(connection, name, messages, due, pace)
    return { seconds: (Date.now() - begun) / 1e3, lost: 0, doubled: 0, early: 0, changed: 0 }
  }
  const ledger = new Ledger(messages)
  takers.start(name, ledger)
  if (mode === 'steady') await store(connection, name, messages, due, pace)
  await ledger.wait()
  await takers.stop()
  return ledger.judge(due, begun)
}

const messages = readMessages(values.messages)
const first = messages.slice(0, warmUp).map(message => ({ ...message, at: 0 }))
await run('steady', 'warm-up', first, { rate: 0, absolute: false })
await remove(connection, 'warm-up')

const commands = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
console.log('ready')
if (!(await commands.next()).done) {
  const outcome = await run(mode, 'delayed', messages, { rate: Number(values.rate), absolute: values.absolute })
  console.log(JSON.stringify(outcome))
  await commands.next()
}
process.exit()
