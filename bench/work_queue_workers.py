"""Workers of the benchmark of work queues, each in its own process: `python work_queue_workers.py NAME JSON`.

A worker receives and acknowledges until the queue is empty, touches each body, and prints its results.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from workloads import Result

from minimq import Message, Producer, WorkQueueConsumer

TOPIC = "work"
GROUP = "workers"


class Tally:
    """Counts the messages of all threads, and records the time of the last one."""

    def __init__(self) -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        self._lock = threading.Lock()
        self._cpu = time.process_time()
        self._began = self._ended = time.perf_counter()  # all processes of a machine share this clock
        self._messages = self._touched = 0

    def add(self, bodies: list[bytes]) -> None:
        """Touch and count the bodies of one receive."""
        touched = sum(map(len, bodies))
        with self._lock:
            self._messages += len(bodies)
            self._touched += touched
            self._ended = time.perf_counter()

    def result(self) -> Result:
        return {
            "began": self._began,
            "ended": self._ended,
            "count": self._messages,
            "cpu_s": time.process_time() - self._cpu,
        }


def run_consumers(consumers: int, drain: Callable[[int], None]) -> None:
    """Run `drain` once for each consumer, each in its own thread."""
    threads = [threading.Thread(target=drain, args=(number,)) for number in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def minimq(nameserver: str, most: int, consumers: int) -> Result:
    """Receive and acknowledge; each consumer has one unconfirmed ack, like those of the other brokers."""
    clients = [WorkQueueConsumer(nameserver, group=GROUP) for _ in range(consumers)]
    for client in clients:
        client.subscribe(TOPIC)
    tally = Tally()

    def drain(number: int) -> None:
        consumer = clients[number]
        unconfirmed: Future[None] | None = None
        while messages := consumer.receive(most, timeout=2):
            tally.add([message.body for message in messages])
            if unconfirmed:
                unconfirmed.result()
            unconfirmed = consumer.ack_async(messages)
        if unconfirmed:
            unconfirmed.result()
        consumer.close()

    run_consumers(consumers, drain)
    return tally.result()


def timed(count: int, cycle: Callable[[], bytes]) -> Result:
    """Measure calls of `cycle`, which receives and acknowledges one message."""
    cycle()
    tally = Tally()
    took: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        tally.add([cycle()])
        took.append((time.perf_counter() - began) * 1e3)
    took.sort()
    return tally.result() | {f"p{q}_ms": took[count * q // 100] for q in (50, 99)}


def minimq_one(nameserver: str, count: int) -> Result:
    """Receive one message, acknowledge it, and wait for the confirmation before the next one."""
    with WorkQueueConsumer(nameserver, group=GROUP) as consumer:
        consumer.subscribe(TOPIC)

        def cycle() -> bytes:
            [message] = consumer.receive(1, timeout=10)
            consumer.ack([message])
            return message.body

        return timed(count, cycle)


def minimq_send(nameserver: str, count: int) -> Result:
    """`send_many` to the topic of the workers."""
    with Producer(nameserver) as producer:
        producer.send_many(Message(TOPIC, bytes(100)) for _ in range(1000))
        tally = Tally()
        receipts = producer.send_many(Message(TOPIC, bytes(100)) for _ in range(count))
        tally.add([b""] * len(receipts))
        return tally.result()


def minimq_latency(nameserver: str, count: int, rate: int) -> Result:
    """Measure the latency from `send` to `receive`, both in this process."""
    with Producer(nameserver) as producer, WorkQueueConsumer(nameserver, group=GROUP) as consumer:
        consumer.subscribe(TOPIC)
        producer.send(Message(TOPIC, b"warm"))
        consumer.ack(consumer.receive())
        tally = Tally()

        def send() -> None:
            began = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, began + number / rate - time.perf_counter()))
                producer.send(Message(TOPIC, str(time.perf_counter_ns()).encode()))

        sender = threading.Thread(target=send)
        sender.start()
        waited: list[float] = []
        while len(waited) < count:
            messages = consumer.receive(timeout=10)
            now = time.perf_counter_ns()
            waited += [(now - int(message.body)) / 1e6 for message in messages]
            tally.add([message.body for message in messages])
            consumer.ack_async(messages)
        sender.join()
        waited.sort()
        return tally.result() | {f"p{q}_ms": waited[count * q // 100] for q in (50, 99)}


def redis(port: int, most: int, consumers: int) -> Result:
    """Receive with XREADGROUP; the XACK of the former messages is in the same pipeline."""
    clients: list[Any] = [import_module("redis").Redis(port=port) for _ in range(consumers)]
    for client in clients:
        client.ping()
    tally = Tally()

    def drain(number: int) -> None:
        name, done = f"worker-{os.getpid()}-{number}", list[bytes]()
        while True:
            pipeline = clients[number].pipeline(transaction=False)
            if done:
                pipeline.xack(TOPIC, GROUP, *done)
            pipeline.xreadgroup(GROUP, name, {TOPIC: ">"}, most)
            found = pipeline.execute()[-1]
            if not found:
                return
            entries = found[0][1]
            done = [entry for entry, _ in entries]
            tally.add([fields[b"b"] for _, fields in entries])

    run_consumers(consumers, drain)
    return tally.result()


def redis_one(port: int, count: int) -> Result:
    """Read one message with XREADGROUP and send its XACK before the next one."""
    client: Any = import_module("redis").Redis(port=port)

    def cycle() -> bytes:
        [[_, [[entry, fields]]]] = client.xreadgroup(GROUP, "worker", {TOPIC: ">"}, 1)
        client.xack(TOPIC, GROUP, entry)
        return bytes(fields[b"b"])

    return timed(count, cycle)


def rabbitmq(port: int, most: int, consumers: int) -> Result:
    """Consume with a prefetch of `2 * most`; acknowledge with `multiple`, which RabbitMQ does not confirm."""
    pika: Any = import_module("pika")
    connections = [pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) for _ in range(consumers)]
    tally = Tally()

    def drain(number: int) -> None:
        channel = connections[number].channel()
        channel.basic_qos(prefetch_count=2 * most)
        bodies, tag = list[bytes](), 0
        for method, _, body in channel.consume(TOPIC, inactivity_timeout=2):
            if method is not None:
                bodies.append(body)
                tag = method.delivery_tag
            if bodies and (method is None or len(bodies) == most):
                channel.basic_ack(tag, multiple=True)
                tally.add(bodies)
                bodies = []
            if method is None:
                break
        channel.cancel()
        connections[number].close()

    run_consumers(consumers, drain)
    return tally.result()


def rabbitmq_one(port: int, count: int) -> Result:
    """Consume with a prefetch of one; acknowledge each message, which RabbitMQ does not confirm."""
    pika: Any = import_module("pika")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    deliveries = channel.consume(TOPIC)

    def cycle() -> bytes:
        method, _, body = next(deliveries)
        channel.basic_ack(method.delivery_tag)
        return bytes(body)

    result = timed(count, cycle)
    connection.close()
    return result


WORKERS: dict[str, Callable[..., Result]] = {
    function.__name__: function
    for function in (minimq, minimq_one, minimq_send, minimq_latency, redis, redis_one, rabbitmq, rabbitmq_one)
}

if __name__ == "__main__":
    print(json.dumps(WORKERS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
