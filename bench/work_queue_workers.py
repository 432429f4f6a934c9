"""Workers of the benchmark of work queues, each in a process of its own: `python work_queue_workers.py NAME JSON`.

A worker takes and acknowledges until nothing is left, touches each body, and prints what it measured.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from workloads import Result

from minimq import Message, Producer, SimpleConsumer

TOPIC = "work"
GROUP = "workers"
#: Acknowledgements of one thread that are under way at once.
UNCONFIRMED = 64


class Tally:
    """Counts messages of all threads, with the time of the last one."""

    def __init__(self) -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        self._lock = threading.Lock()
        self._cpu = time.process_time()
        self._began = self._ended = time.perf_counter()  # one clock for all processes of a machine
        self._messages = self._touched = 0

    def add(self, bodies: list[bytes]) -> None:
        """Touch and count the bodies of one take."""
        touched = sum(map(len, bodies))
        with self._lock:
            self._messages += len(bodies)
            self._touched += touched
            self._ended = time.perf_counter()

    def result(self) -> Result:
        """Return what was measured."""
        return {
            "began": self._began,
            "ended": self._ended,
            "count": self._messages,
            "cpu_s": time.process_time() - self._cpu,
        }


def minimq(nameserver: str, most: int, threads: int = 1) -> Result:
    """Take and acknowledge with one `SimpleConsumer` for each thread."""
    consumers = [SimpleConsumer(nameserver, group=GROUP) for _ in range(threads)]
    for consumer in consumers:
        consumer.subscribe(TOPIC)
    tally = Tally()

    def work(consumer: SimpleConsumer) -> None:
        acks: deque[Future[None]] = deque()
        while messages := consumer.receive(most, timeout=2):
            tally.add([message.body for message in messages])
            acks.append(consumer.ack_async(messages))
            if len(acks) == UNCONFIRMED:
                acks.popleft().result()
        for ack in acks:
            ack.result()
        consumer.close()

    workers = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return tally.result()


def minimq_send(nameserver: str, count: int) -> Result:
    """`send_many` to the topic of the workers."""
    with Producer(nameserver) as producer:
        producer.send_many(Message(TOPIC, bytes(100)) for _ in range(1000))
        tally = Tally()
        receipts = producer.send_many(Message(TOPIC, bytes(100)) for _ in range(count))
        tally.add([b""] * len(receipts))
        return tally.result()


def minimq_latency(nameserver: str, count: int, rate: int) -> Result:
    """Time from `send` to `receive`, both in this process."""
    with Producer(nameserver) as producer, SimpleConsumer(nameserver, group=GROUP) as consumer:
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


def redis(port: int, most: int) -> Result:
    """Take with XREADGROUP; the XACK of what was taken before goes along with it."""
    client: Any = import_module("redis").Redis(port=port)
    client.ping()
    tally = Tally()
    name, done = f"worker-{os.getpid()}", list[bytes]()
    while True:
        pipeline = client.pipeline(transaction=False)
        if done:
            pipeline.xack(TOPIC, GROUP, *done)
        pipeline.xreadgroup(GROUP, name, {TOPIC: ">"}, most)
        found = pipeline.execute()[-1]
        if not found:
            return tally.result()
        entries = found[0][1]
        done = [entry for entry, _ in entries]
        tally.add([fields[b"b"] for _, fields in entries])


def rabbitmq(port: int, most: int) -> Result:
    """Consume with a prefetch of four takes; acknowledge each take with `multiple`."""
    pika: Any = import_module("pika")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=4 * most)
    tally = Tally()
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
    connection.close()
    return tally.result()


WORKERS: dict[str, Callable[..., Result]] = {
    function.__name__: function for function in (minimq, minimq_send, minimq_latency, redis, rabbitmq)
}

if __name__ == "__main__":
    print(json.dumps(WORKERS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
