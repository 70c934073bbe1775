"""The recipes of docs/recipes, with short delays. It ends with an error if a message is missing, repeated or too much.

    python3 -m venv .venv && .venv/bin/pip install confluent-kafka
    .venv/bin/python docs/clients/recipes.py [BROKER [SECONDS]]
"""

import json
import random
import sys
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

broker = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
run = f"python-{time.time_ns()}"

producer = Producer({
    "bootstrap.servers": broker,
    "enable.idempotence": True,
    # The partitions of Java clients. The default of librdkafka differs.
    "partitioner": "murmur2_random",
})


def send(key, value, headers):
    """Returns when the in-sync replicas have the record. A repeat after an error may store it twice."""
    errors = []
    producer.produce("orders.delayed", key=key, value=value, headers=headers, on_delivery=lambda error, _: errors.append(error))
    producer.flush()
    if errors[0]:
        raise KafkaException(errors[0])


# Order timeout.


def order_placed(order, timeout="30m"):
    send(order, "close", {"postdate-after": timeout, "postdate-id": f"close:{order}"})


def close_unless_paid(order, origin):
    # In your database, these lines are one transaction.
    if origin in done:
        return
    done.add(origin)
    if order not in paid:
        closed.append(order)


# Cancel on payment.


def order_paid(order):
    paid.add(order)
    send(order, None, {"postdate-op": "cancel", "postdate-id": f"close:{order}"})


# Cancel on payment, with an answer.

answers = Consumer({"bootstrap.servers": broker, "group.id": f"{run}-answers", "enable.auto.commit": False})


def read_answers_from_now():
    """Without a subscription: each process reads all answers and takes its own."""
    partitions = answers.list_topics("orders.answers").topics["orders.answers"].partitions
    ends = [TopicPartition("orders.answers", number) for number in partitions]
    for end in ends:
        _, end.offset = answers.get_watermark_offsets(end)
    answers.assign(ends)


def cancel_and_wait(order, timeout=10):
    """Returns the outcome. None: it is not known in time."""
    request = f"{order}:{time.time_ns()}"
    send(order, None, {
        "postdate-op": "cancel",
        "postdate-id": f"close:{order}",
        "postdate-reply-to": "orders.answers",
        "postdate-request-id": request,
    })
    end = time.time() + timeout
    while time.time() < end:
        record = answers.poll(0.2)
        if record is None:
            continue
        if record.error():
            raise KafkaException(record.error())
        answer = json.loads(record.value())
        if answer["request_id"] == request:
            return answer["outcome"]
    return None


# Reminder.


def appointment_set(appointment, start, leads):
    for name, lead in leads.items():
        due = start - lead
        headers = {"postdate-id": f"{name}:{appointment}"}
        if due > datetime.now(timezone.utc):
            headers["postdate-at"] = due.isoformat(timespec="milliseconds")
        else:
            headers["postdate-op"] = "cancel"
        send(appointment, f"remind {start.isoformat()}", headers)


# Debounce.


def document_edited(document, quiet="5s"):
    send(document, "index", {"postdate-after": quiet, "postdate-id": f"index:{document}"})


def document_edited_often(document, window=60):
    number = int(time.time() // window)
    headers = {"postdate-at": str((number + 1) * window * 1000), "postdate-id": f"index:{document}:{number}"}
    send(document, "index-window", headers)


# Retry with backoff.


def retry(key, value, headers, first=1, longest=3600, attempts=10):
    attempt = int(headers.get("attempt", 1)) + 1
    if attempt > attempts:
        given_up.append(key)  # Write it to a topic of its own.
        return
    delay = min(first * 2 ** (attempt - 2), longest) * random.uniform(0.8, 1.2)
    kept = {name: text for name, text in headers.items() if not name.startswith("postdate-")}
    kept["attempt"] = str(attempt)
    # The origin of the first attempt: each attempt is a new record with an origin of its own.
    kept.setdefault("first-origin", headers["postdate-origin"])
    # An id has no `/`, and at most 128 characters.
    name = uuid.uuid5(uuid.NAMESPACE_URL, kept["first-origin"])
    send(key, value, {**kept, "postdate-after": str(round(delay * 1000)), "postdate-id": f"retry:{name}:{attempt}"})


# The consumer of all recipes.

consumer = Consumer({
    "bootstrap.servers": broker,
    "group.id": run,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
})
consumer.subscribe(["orders"])


def consume(handle, seconds):
    end = time.time() + seconds
    while time.time() < end:
        record = consumer.poll(0.2)
        if record is None:
            continue
        if record.error():
            raise KafkaException(record.error())
        headers = {name: value.decode() for name, value in record.headers() or [] if value is not None}
        # A record that Postdate did not deliver has no origin.
        headers.setdefault("postdate-origin", f"{record.topic()}/{record.partition()}/{record.offset()}")
        handle((record.key() or b"").decode(), (record.value() or b"").decode(), headers)
        # After the work: a crash before this line repeats the record.
        consumer.commit(record)


# The run.

done, paid, closed, given_up = set(), set(), [], []
arrived = Counter()


def handle(key, value, headers):
    if not key.startswith(run):
        return
    arrived[f"{key.removeprefix(run)} {value.split()[0]}"] += 1
    if value == "close":
        close_unless_paid(key, headers["postdate-origin"])
        close_unless_paid(key, headers["postdate-origin"])
    elif value == "charge" and int(headers.get("attempt", 1)) < 3:
        retry(key, value, headers, first=0.5)
    elif value == "refund":
        retry(key, value, headers, first=0.5, attempts=2)


def main():
    leads = {"day": timedelta(days=1), "soon": timedelta(seconds=2)}
    now = datetime.now(timezone.utc)
    read_answers_from_now()
    for order in ("unpaid", "paid", "late", "asked"):
        order_placed(f"{run}-{order}", timeout="5s")
    order_paid(f"{run}-paid")
    outcomes = [cancel_and_wait(f"{run}-asked") for _ in range(2)]
    paid.add(f"{run}-late")  # Paid, and the cancel comes too late.
    appointment_set(f"{run}-visit", now + timedelta(seconds=8), leads)
    appointment_set(f"{run}-visit", now + timedelta(seconds=9), leads)
    for _ in range(5):
        document_edited(f"{run}-text", quiet="3s")
        document_edited_often(f"{run}-text", window=4)
    send(f"{run}-charge", "charge", {"postdate-after": "500ms"})
    # Straight to the target, with a null header.
    producer.produce("orders", key=f"{run}-refund", value="refund", headers=[("trace", None)])
    producer.flush()
    consume(handle, seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 12)
    consumer.close()
    answers.close()

    windows = arrived.pop("-text index-window", 0)
    expected = {"-unpaid close": 1, "-late close": 1, "-visit remind": 1, "-text index": 1, "-charge charge": 3, "-refund refund": 2}
    if outcomes != ["cancelled", "not_found"]:
        sys.exit(f"the answers are {outcomes}")
    if arrived != expected or windows not in (1, 2) or closed != [f"{run}-unpaid"] or given_up != [f"{run}-refund"]:
        sys.exit(f"arrived {dict(arrived)} and {windows} windows, closed {closed}, given up {given_up}")
    print("each recipe has done what it says")


main()
