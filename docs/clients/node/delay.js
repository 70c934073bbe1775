// Sends a message that is due in ten seconds, and waits for it. With Node.js 22.22 or later:
//
//     cd docs/clients/node && npm install && node delay.js [BROKER]

import { Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const broker = process.argv[2] ?? '127.0.0.1:9092'
const key = `node-${process.hrtime.bigint()}`

const producer = new Producer({ clientId: key, bootstrapBrokers: [broker], serializers: stringSerializers })
await producer.send({
  messages: [{ topic: 'orders.delayed', key, value: 'close it unless it was paid', headers: { 'postdate-after': '10s' } }]
})
await producer.close()
const sent = Date.now()
console.log(`sent ${key}, due in ten seconds`)

const consumer = new Consumer({ clientId: key, groupId: key, bootstrapBrokers: [broker], deserializers: stringDeserializers })
const stream = await consumer.consume({ topics: ['orders'], mode: 'earliest' })
const timeout = setTimeout(() => {
  console.error('it did not arrive within 30 s: is the service running?')
  process.exit(1)
}, 30_000)
for await (const arrived of stream) {
  if (arrived.key !== key) continue
  const late = Number(arrived.timestamp) - Number(arrived.headers.get('postdate-due'))
  const seconds = (Date.now() - sent) / 1000
  console.log(`arrived after ${seconds.toFixed(1)} s, stamped ${late} ms after its due: ${arrived.value}`, Object.fromEntries(arrived.headers))
  break
}
clearTimeout(timeout)
await consumer.close(true)
