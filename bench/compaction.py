"""The cost of compaction: its CPU time, its effect on sends, and the speed of reading the compacted topic.

    .venv/bin/python bench/compaction.py [--messages 1000000] [--keys 100000] [--body 200]

Reads of the compacted topic are compared, in turn and by CPU time, with reads of the same messages in a plain topic.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from processes import cpu_seconds

from minimq import Admin, Compaction, LocalCluster, Message, Producer, PullConsumer
from minimq.consuming.range_reader import RangeReader

STATE, PLAIN, OTHER = "state", "plain", "other"
ROUNDS = 5
#: Reads per round: the kernel counts CPU time in hundredths of a second, so one read is too short.
READS = 10


def changes(topic: str, count: int, keys: int, body: int) -> Iterator[Message]:
    """Yield changes of a table; the keys are in a fixed scrambled order."""
    for number in range(count):
        yield Message(topic, (b"%d " % number).ljust(body, b"x"), keys=(f"key-{number * 7919 % keys}",))


def shown(cluster: LocalCluster) -> str:
    """Return the log of the broker, which has a line for each compaction."""
    return cluster.brokers[0].log_path.read_text()


def latencies(cluster: LocalCluster, seconds: float) -> dict[str, float]:
    """Send one message after the other; return their latencies in ms."""
    found = []
    with Producer(cluster.nameserver) as producer:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            producer.send(Message(OTHER, b"x" * 100))
            found.append((time.perf_counter() - began) * 1000)
    cuts = statistics.quantiles(found, n=100)
    return {"sends": len(found), "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


def read_range(cluster: LocalCluster, topic: str) -> tuple[int, float]:
    """Read a topic; return the number of messages, and the CPU seconds of client and broker."""
    pid = cluster.brokers[0].pid
    assert pid is not None
    before = time.process_time() + cpu_seconds(pid)
    count = 0
    with Admin(cluster.nameserver) as admin, closing(RangeReader(cluster.nameserver)) as reader:
        for each in admin.describe_topic(topic).queues * READS:
            for batch in reader.read(each.queue, each.min_offset, each.max_offset):
                count += len(batch.messages(each.min_offset))
    return count, time.process_time() + cpu_seconds(pid) - before


def read_group(cluster: LocalCluster, topic: str, count: int, number: int) -> tuple[int, float]:
    """Consume `count` messages, `READS` times; return their number, and the CPU seconds of client and broker."""
    pid = cluster.brokers[0].pid
    assert pid is not None
    before, found = time.process_time() + cpu_seconds(pid), 0
    with PullConsumer(cluster.nameserver, group=f"{topic}-{number}", start="earliest") as consumer:
        consumer.subscribe(topic)
        for again in range(1, READS + 1):
            while found < again * count and (messages := consumer.poll(10.0)):
                found += len(messages)
            for queue in consumer.assignment:
                consumer.seek(queue, "earliest")
    return found, time.process_time() + cpu_seconds(pid) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--body", type=int, default=200)
    given = parser.parse_args()
    quiet = {"segment_bytes": 64 << 20}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with LocalCluster(brokers=1, data_dir=data, broker_options={**quiet, "upkeep_interval_s": 1e6}) as cluster:
            with Admin(cluster.nameserver) as admin:
                admin.create_topic(STATE, queues=4, compaction=Compaction(dirty_ratio=0.01))
                admin.create_topic(PLAIN, queues=4)
                admin.create_topic(OTHER, queues=1)
            with Producer(cluster.nameserver) as producer:
                producer.send_many(changes(STATE, given.messages, given.keys, given.body))
                # Fill the last segment, so that the whole topic is sealed.
                producer.send_many(Message(OTHER, bytes(1 << 20)) for _ in range(70))
            idle = latencies(cluster, 5.0)
        with LocalCluster(brokers=1, data_dir=data, broker_options={**quiet, "upkeep_interval_s": 0.1}) as cluster:
            pid = cluster.brokers[0].pid
            assert pid is not None
            began, before = time.monotonic(), cpu_seconds(pid)
            while "compaction: done" not in shown(cluster):
                time.sleep(0.05)
            print(
                json.dumps(
                    {
                        "compaction": {
                            "messages": given.messages,
                            "seconds": round(time.monotonic() - began, 1),
                            "cpu_s_per_million": round((cpu_seconds(pid) - before) * 1e6 / given.messages, 2),
                        }
                    }
                )
            )
            with Producer(cluster.nameserver) as producer:
                left = []
                with Admin(cluster.nameserver) as admin, closing(RangeReader(cluster.nameserver)) as reader:
                    for each in admin.describe_topic(STATE).queues:
                        for batch in reader.read(each.queue, each.min_offset, each.max_offset):
                            left += [Message(PLAIN, m.body, keys=m.keys) for m in batch.messages(each.min_offset)]
                producer.send_many(left)
            for name in ("range", "consumer"):
                found: dict[str, list[float]] = {STATE: [], PLAIN: []}
                for number in range(ROUNDS):
                    for topic, rates in found.items():
                        count, used = (
                            read_range(cluster, topic)
                            if name == "range"
                            else read_group(cluster, topic, len(left), number)
                        )
                        rates.append(used * 1e6 / count)
                state, plain = (statistics.median(found[topic]) for topic in (STATE, PLAIN))
                print(
                    json.dumps(
                        {
                            f"read_by_{name}": {
                                "messages": len(left),
                                "compacted_us": round(state, 3),
                                "plain_us": round(plain, 3),
                                "more": f"{(state / plain - 1) * 100:.1f} %",
                            }
                        }
                    )
                )
            with Producer(cluster.nameserver) as producer:  # cause another compaction
                producer.send_many(changes(STATE, given.messages, given.keys, given.body))
                producer.send_many(Message(OTHER, bytes(1 << 20)) for _ in range(70))
            print(json.dumps({"sends_idle": idle, "sends_while_compacting": latencies(cluster, 5.0)}))


if __name__ == "__main__":
    main()
