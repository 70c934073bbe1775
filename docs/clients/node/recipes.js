// The recipes of docs/recipes, with short delays. It ends with an error if a message is missing, repeated or too much.
//
//     cd docs/clients/node && npm install && node recipes.js [BROKER [SECONDS]]

import { once } from 'node:events'
import { isDeepStrictEqual } from 'node:util'
import { createHash } from 'node:crypto'
import { compatibilityPartitioner, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const broker = process.argv[2] ?? '127.0.0.1:9092'
const run = `node-${process.hrtime.bigint()}`

const producer = new Producer({
  clientId: run,
  bootstrapBrokers: [broker],
  serializers: stringSerializers,
  idempotent: true,
  // The partitions of Java clients. The default differs unless the number of partitions is a power of two.
  partitioner: compatibilityPartitioner
})

// Returns when the in-sync replicas have the record. A repeat after an error may store it twice.
async function send(key, value, headers) {
  await producer.send({ messages: [{ topic: 'orders.delayed', key, value, headers }] })
}

// Order timeout.

async function orderPlaced(order, timeout = '30m') {
  await send(order, 'close', { 'postdate-after': timeout, 'postdate-id': `close:${order}` })
}

function closeUnlessPaid(order, origin) {
  // In your database, these lines are one transaction.
  if (done.has(origin)) return
  done.add(origin)
  if (!paid.has(order)) closed.push(order)
}

// Cancel on payment.

async function orderPaid(order) {
  paid.add(order)
  await send(order, null, { 'postdate-op': 'cancel', 'postdate-id': `close:${order}` })
}

// Cancel on payment, with an answer.

const answers = new Consumer({ clientId: run, groupId: `${run}-answers`, bootstrapBrokers: [broker], deserializers: stringDeserializers })
const waiting = new Map()

// A group of its own: each process reads all answers and takes its own.
async function readAnswersFromNow() {
  const stream = await answers.consume({ topics: ['orders.answers'], mode: 'latest', autocommit: false })
  await once(stream, 'offsets')
  stream.on('data', record => {
    const answer = JSON.parse(record.value)
    waiting.get(answer.request_id)?.(answer.outcome)
  })
}

// Returns the outcome. Undefined: it is not known in time.
async function cancelAndWait(order, timeout = 10_000) {
  const request = `${order}:${process.hrtime.bigint()}`
  const outcome = new Promise(resolve => {
    waiting.set(request, resolve)
    setTimeout(resolve, timeout).unref()
  })
  await send(order, null, {
    'postdate-op': 'cancel',
    'postdate-id': `close:${order}`,
    'postdate-reply-to': 'orders.answers',
    'postdate-request-id': request
  })
  return outcome.finally(() => waiting.delete(request))
}

// Reminder.

async function appointmentSet(appointment, start, leads) {
  for (const [name, lead] of Object.entries(leads)) {
    const due = start - lead
    const change = due > Date.now() ? { 'postdate-at': `${due}` } : { 'postdate-op': 'cancel' }
    await send(appointment, `remind ${new Date(start).toISOString()}`, { ...change, 'postdate-id': `${name}:${appointment}` })
  }
}

// Debounce.

async function documentEdited(document, quiet = '5s') {
  await send(document, 'index', { 'postdate-after': quiet, 'postdate-id': `index:${document}` })
}

async function documentEditedOften(document, window = 60_000) {
  const number = Math.floor(Date.now() / window)
  await send(document, 'index-window', { 'postdate-at': `${(number + 1) * window}`, 'postdate-id': `index:${document}:${number}` })
}

// Retry with backoff.

async function retry(key, value, headers, { first = 1000, longest = 3_600_000, attempts = 10 } = {}) {
  const attempt = Number(headers.get('attempt') ?? 1) + 1
  if (attempt > attempts) {
    givenUp.push(key) // Write it to a topic of its own.
    return
  }
  const delay = Math.min(first * 2 ** (attempt - 2), longest) * (0.8 + 0.4 * Math.random())
  const kept = Object.fromEntries([...headers].filter(([name, text]) => text !== undefined && !name.startsWith('postdate-')))
  // The origin of the first attempt: each attempt is a new record with an origin of its own.
  kept['first-origin'] ??= headers.get('postdate-origin')
  // An id has no `/`, and at most 128 characters.
  const name = createHash('sha256').update(kept['first-origin']).digest('hex')
  await send(key, value, {
    ...kept,
    attempt: `${attempt}`,
    'postdate-after': `${Math.round(delay)}`,
    'postdate-id': `retry:${name}:${attempt}`
  })
}

// The consumer of all recipes.

const consumer = new Consumer({ clientId: run, groupId: run, bootstrapBrokers: [broker], deserializers: stringDeserializers })

async function consume(handle) {
  const stream = await consumer.consume({ topics: ['orders'], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
  for await (const record of stream) {
    // A record that Postdate did not deliver has no origin.
    if (!record.headers.has('postdate-origin')) record.headers.set('postdate-origin', `${record.topic}/${record.partition}/${record.offset}`)
    await handle(record.key, record.value, record.headers)
    // After the work: a crash before this line repeats the record.
    await record.commit()
  }
}

// The run.

const [done, paid, closed, givenUp] = [new Set(), new Set(), [], []]
const arrived = {}

async function handle(key, value, headers) {
  if (!key?.startsWith(run)) return
  const counted = `${key.slice(run.length)} ${value.split(' ')[0]}`
  arrived[counted] = (arrived[counted] ?? 0) + 1
  if (value === 'close') {
    closeUnlessPaid(key, headers.get('postdate-origin'))
    closeUnlessPaid(key, headers.get('postdate-origin'))
  } else if (value === 'charge' && Number(headers.get('attempt') ?? 1) < 3) {
    await retry(key, value, headers, { first: 500 })
  } else if (value === 'refund') {
    await retry(key, value, headers, { first: 500, attempts: 2 })
  }
}

function judge() {
  const { '-text index-window': windows, ...rest } = arrived
  const expected = { '-unpaid close': 1, '-late close': 1, '-visit remind': 1, '-text index': 1, '-charge charge': 3, '-refund refund': 2 }
  const ends = isDeepStrictEqual([closed, givenUp, outcomes], [[`${run}-unpaid`], [`${run}-refund`], ['cancelled', 'not_found']])
  if (ends && isDeepStrictEqual(rest, expected) && [1, 2].includes(windows)) {
    console.log('each recipe has done what it says')
    process.exit(0)
  }
  console.error('arrived', arrived, 'closed', closed, 'given up', givenUp, 'answers', outcomes)
  process.exit(1)
}

const now = Date.now()
await readAnswersFromNow()
for (const order of ['-unpaid', '-paid', '-late', '-asked']) await orderPlaced(run + order, '5s')
await orderPaid(`${run}-paid`)
const outcomes = [await cancelAndWait(`${run}-asked`), await cancelAndWait(`${run}-asked`)]
paid.add(`${run}-late`) // Paid, and the cancel comes too late.
const leads = { day: 86_400_000, soon: 2000 }
await appointmentSet(`${run}-visit`, now + 8000, leads)
await appointmentSet(`${run}-visit`, now + 9000, leads)
for (let edit = 0; edit < 5; edit++) {
  await documentEdited(`${run}-text`, '3s')
  await documentEditedOften(`${run}-text`, 4000)
}
await send(`${run}-charge`, 'charge', { 'postdate-after': '500ms' })
// Straight to the target.
await producer.send({ messages: [{ topic: 'orders', key: `${run}-refund`, value: 'refund' }] })
setTimeout(judge, 1000 * Number(process.argv[3] ?? 12))
await consume(handle)
