"""The cost of finding a message: duration of a search by key and by id, and its effect on concurrent sends.

    .venv/bin/python bench/find.py [--messages 1800000] [--batch 2000] [--queues 8] [--compression none]

An hour at 5,000 messages per second is 18 million: `--messages 18000000` sends all of them, which takes a minute and
3 GB of disk. The default is a tenth of that; the last column scales the times to 18 million. Each message has a body of
100 bytes and a unique key. There is one broker, and the search covers all of its batches.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from processes import cpu_seconds

from minimq import Admin, LocalCluster, Message, Producer

TOPIC = "found"
HOUR_MESSAGES = 18_000_000
ROUNDS = 7
_BODY = b"0123456789" * 10


def messages(count: int) -> Iterator[Message]:
    """Yield messages with unique keys."""
    for number in range(count):
        yield Message(TOPIC, _BODY, keys=(f"order-{number:09d}",))


class SendLatencies:
    """Sends a message to another topic every 2 ms, from `start` to `stop`, and records the latencies in ms."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.waits: list[float] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[float]:
        """Stop; return the sorted latencies."""
        self._over.set()
        self._thread.join()
        return sorted(self.waits)

    def _run(self) -> None:
        with Producer(self._nameserver) as producer:
            while not self._over.wait(0.002):
                began = time.perf_counter()
                producer.send(Message("others", b"x"))
                self.waits.append((time.perf_counter() - began) * 1e3)


def measure(name: str, scale: float, pid: int, search: Callable[[], int], expected: int) -> None:
    """Search `ROUNDS` times, and print the median."""
    times, began_cpu = [], cpu_seconds(pid)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert search() == expected, name
        times.append(time.perf_counter() - began)
    median, cpu = statistics.median(times), (cpu_seconds(pid) - began_cpu) / ROUNDS
    print(f"{name:<34}{median * 1e3:>10.1f} ms{cpu * 1e3:>10.1f} ms{median * scale * 1e3:>12.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=HOUR_MESSAGES // 10)
    parser.add_argument("--batch", type=int, default=2_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--compression", choices=("none", "zstd"), default="none")
    options = parser.parse_args()
    count, scale = options.messages, HOUR_MESSAGES / options.messages
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver, timeout_s=30) as admin:
        admin.create_topic(TOPIC, queues=options.queues)
        admin.create_topic("others", queues=1)
        size = {"batch_messages": options.batch, "batch_bytes": 4 << 20, "compression": options.compression}
        with Producer(cluster.nameserver, **size) as producer:
            receipts = 0
            for last in producer.send_many(messages(count)):  # noqa: B007 - the last one is searched for
                receipts += 1
        assert receipts == count
        [broker] = cluster.brokers
        pid = broker.pid or 0

        def by_key(number: int, *, verify: bool = False) -> Callable[[], int]:
            key = f"order-{number:09d}"
            return lambda: len(admin.find_messages(TOPIC, key=key, since="earliest", verify=verify).messages)

        print(f"{count:,} messages in batches of {options.batch:,}, compression {options.compression}")
        print(f"{'search':<34}{'median':>13}{'CPU there':>13}{'of 18 M':>15}")
        measure("key of one message", scale, pid, by_key(count // 2), 1)
        measure("key of none", scale, pid, by_key(count), 0)
        measure("key of none, checksums compared", scale, pid, by_key(count, verify=True), 0)
        wanted = last.message_id
        by_id = lambda: len(admin.find_messages(TOPIC, message_id=wanted, since="earliest").messages)  # noqa: E731
        measure("id of the last message", scale, pid, by_id, 1)
        for what, search in (("nothing", lambda: time.sleep(0.3)), ("a search", by_key(count))):
            waits = SendLatencies(cluster.nameserver)
            waits.start()
            until = time.monotonic() + 3
            while time.monotonic() < until:
                search()
            found = waits.stop()
            print(
                f"one send during {what}: median {statistics.median(found):.2f} ms, p99 "
                f"{found[int(len(found) * 0.99)]:.2f} ms, most {found[-1]:.2f} ms"
            )


if __name__ == "__main__":
    main()
