"""A pool of workers: each task goes to one of them, failed tasks are retried, and none is lost.

python examples/worker_pool.py
"""

from __future__ import annotations

import threading

from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage

TASKS = 40


def run(nameserver: str) -> tuple[int, int]:
    """Process all tasks with three workers; return the number of tasks and the number of calls."""
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("thumbnails", queues=2)
        producer.send_many(Message("thumbnails", b"picture %d" % number) for number in range(TASKS))
    done, calls, lock = set[bytes](), 0, threading.Lock()
    finished = threading.Event()

    def work(messages: list[ReceivedMessage]) -> ConsumeResult:
        nonlocal calls
        with lock:
            calls += 1
            [message] = messages
            if message.body.endswith(b"7") and message.delivery_count == 1:
                return ConsumeResult.RETRY_LATER  # an exception has the same effect
            done.add(message.body)
            if len(done) == TASKS:
                finished.set()
        return ConsumeResult.SUCCESS

    # mode="work_queue" makes the topic a work queue: more workers than queues all have work.
    workers = [
        PushConsumer(
            nameserver,
            group="resizers",
            mode="work_queue",
            batch_size=1,
            threads=4,
            max_deliveries=3,
            retry_delays_s=(0.2,),
        )
        for _ in range(3)
    ]
    for worker in workers:
        worker.subscribe("thumbnails")
        worker.start(work)
    finished.wait()
    for worker in workers:
        worker.close()
    return len(done), calls


if __name__ == "__main__":
    with LocalCluster(brokers=1) as cluster:
        tasks, calls = run(cluster.nameserver)
    print(f"{tasks} tasks done in {calls} calls")
