// A thread that takes due jobs.

import { parentPort, workerData } from 'node:worker_threads'
import { Worker } from 'bullmq'
import { Ledger } from './ledger.js'
import { readMessages } from './message.js'

// Jobs at once. Each one needs a round trip.
const concurrency = 64

const { connection, file } = workerData
const messages = readMessages(file)
let worker

parentPort.on('message', async order => {
  if (order === 'stop') {
    await worker.close()
    parentPort.postMessage('stopped')
    return
  }
  const ledger = new Ledger(messages, order.memory)
  worker = new Worker(order.name, async job => ledger.note(job.data), { connection, concurrency })
  worker.on('error', error => console.error(error))
})
