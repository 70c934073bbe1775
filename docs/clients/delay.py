"""Sends a message that is due in ten seconds, and waits for it. With confluent-kafka in an environment of its own:

    python3 -m venv .venv && .venv/bin/pip install confluent-kafka
    .venv/bin/python docs/clients/delay.py [BROKER]
"""

import sys
import time

from confluent_kafka import Consumer, Producer

broker = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
key = f"python-{time.time_ns()}"

producer = Producer({"bootstrap.servers": broker})
producer.produce("orders.delayed", key=key, value="close it unless it was paid", headers={"postdate-after": "10s"})
if producer.flush(10) > 0:
    sys.exit(f"{broker} did not take the message")
sent = time.time()
print(f"sent {key}, due in ten seconds")

consumer = Consumer({"bootstrap.servers": broker, "group.id": key, "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
while time.time() < sent + 30:
    record = consumer.poll(1)
    if record is None or record.error() or record.key() != key.encode():
        continue
    headers = {name: value.decode() for name, value in record.headers()}
    late = record.timestamp()[1] - int(headers["postdate-due"])
    print(f"arrived after {time.time() - sent:.1f} s, stamped {late} ms after its due: {record.value().decode()} {headers}")
    consumer.close()
    break
else:
    sys.exit("it did not arrive within 30 s: is the service running?")
