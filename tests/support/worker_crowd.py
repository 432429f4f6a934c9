"""A process with many consumers of one work queue, which share a connection.

    python worker_crowd.py NAMESERVER TOPIC GROUP CONSUMERS

Each receives and acknowledges until stdin is closed. Then it prints the numbers of the messages that were acknowledged,
by consumer.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import threading

from minimq import Cluster, WorkQueueConsumer


def main(nameserver: str, topic: str, group: str, count: str) -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    is_over = threading.Event()
    done: list[list[int]] = [[] for _ in range(int(count))]

    def work(cluster: Cluster, mine: list[int]) -> None:
        with WorkQueueConsumer(cluster, group=group, prefetch_messages=0) as consumer:
            consumer.subscribe(topic)
            while not is_over.is_set():
                messages = consumer.receive(5, timeout=3)  # a hundred look for the brokers at once
                consumer.ack(messages)
                mine += [int(message.body) for message in messages]

    with Cluster(nameserver) as cluster:
        threads = [threading.Thread(target=work, args=(cluster, mine)) for mine in done]
        for thread in threads:
            thread.start()
        sys.stdin.read()
        is_over.set()
        for thread in threads:
            thread.join()
    print(json.dumps(done))


main(*sys.argv[1:])
