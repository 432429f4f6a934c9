"""Compares Spark with minimq and with Kafka: the same rows, in turn, each case in a new Java process.

    make bench-spark-kafka [ARGS="--runs 5 --only stream"]

`read` is a batch query, `stream` a query with `availableNow` in four micro-batches, `write` a stream of files that is
written in four micro-batches, `floor` a micro-batch of a warm query with one message, or with one in each of eight
queues. Each line is the median of its runs. `spark` is the CPU time of Java and Python together, `python` that of the
Python workers, `broker` that of the servers. Rows are discarded (`noop`), except in `write` and in the last line.

Kafka has its defaults: it acknowledges before messages are on disk, and its sink writes at least once. minimq syncs
before it acknowledges.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from kafka_server import KafkaServer
from process_tree import descendants
from processes import cpu_seconds_with_children
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from rich.table import Table
from spark_scan import QUEUES, discard, fill
from spark_stream import wait_for

from minimq import Admin, LocalCluster, Producer

#: Bytes per body, and number of messages.
SIZES = {"100 B": (100, 4_000_000), "1 KiB": (1024, 1_000_000)}
PAIR = "offset bigint, body binary"
FILES = 4
#: Micro-batches of `floor` that are not measured: at the start, and as a margin at the end.
WARM = 15
#: Prefixes of the jars that Spark lacks.
_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
_GIVE_UP_S, _PAUSE_S = 300.0, 0.02


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run."""

    seconds: float
    java: float
    python: float
    broker: float

    def since(self, before: Cost) -> Cost:
        """Return the difference to an earlier cost."""
        return Cost(
            self.seconds - before.seconds,
            self.java - before.java,
            self.python - before.python,
            self.broker - before.broker,
        )

    def per(self, number: int) -> Cost:
        """Return the average over `number` items."""
        return Cost(self.seconds / number, self.java / number, self.python / number, self.broker / number)


@dataclass(frozen=True)
class Case:
    """The same work for both systems."""

    kind: str
    name: str
    minimq: Callable[[int], Cost]
    kafka: Callable[[int], Cost]
    costs: dict[str, list[Cost]] = field(default_factory=lambda: defaultdict(list))


class Stopwatch:
    """Measures CPU time by kind of process.

    Args:
        servers: process ids of the servers of both systems.
    """

    def __init__(self, servers: list[int]) -> None:
        self._servers = servers

    def now(self) -> Cost:
        """Return the totals so far."""
        java = python = 0.0
        servers = {*self._servers}
        for process in descendants(os.getpid()):  # parents first
            if process.pid in servers or process.parent in servers:
                servers.add(process.pid)
            elif process.command.split(" ", 1)[0].endswith("java"):
                java += cpu_seconds_with_children(process.pid)
            else:
                python += cpu_seconds_with_children(process.pid)
        return Cost(
            time.monotonic(),
            java,
            python + cpu_seconds_with_children(os.getpid()),
            sum(map(cpu_seconds_with_children, servers)),
        )

    def measure(self, work: Callable[[], object]) -> Cost:
        before = self.now()
        work()
        return self.now().since(before)


class Sides:
    """Sources and sinks of both systems. Set `spark` before each case; checkpoints and files are in a folder."""

    spark: SparkSession

    def __init__(self, nameserver: str, kafka: str, folder: Path) -> None:
        self._minimq = {"nameserver": nameserver}
        self._kafka = {"kafka.bootstrap.servers": kafka}
        self._folder = folder

    def read(self, topic: str, columns: str | None) -> tuple[DataFrame, DataFrame]:
        """Return a batch query for minimq and one for Kafka."""
        source = self.spark.read.format("minimq").options(**self._minimq).option("topic", topic)
        other = self.spark.read.format("kafka").options(**self._kafka).option("subscribe", topic).load()
        return (source.schema(columns) if columns else source).load(), _chosen(other, columns)

    def follow(self, topic: str, columns: str | None, most: int) -> tuple[DataFrame, DataFrame]:
        """Return a stream for minimq and one for Kafka."""
        limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        source = self.spark.readStream.format("minimq").options(**self._minimq, **limits).option("topic", topic)
        other = self.spark.readStream.format("kafka").options(**self._kafka, **limits).option("subscribe", topic)
        return (source.schema(columns) if columns else source).load(), _chosen(other.load(), columns)

    def files(self) -> DataFrame:
        """Return a stream of the files, one in each micro-batch."""
        rows = self.spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
        return rows.parquet(str(self._folder / "files"))

    def write_files(self, rows: int) -> None:
        frame = self.spark.range(0, rows, 1, FILES).selectExpr("concat('key-', id) key", "lpad(id, 100, '0') value")
        frame.write.parquet(str(self._folder / "files"))

    def fill_kafka(self, topic: str, messages: int, size: int, queues: int) -> None:
        """Send messages to the first `queues` partitions, in batches as large as those of minimq."""
        frame = self.spark.range(0, messages, 1, queues).selectExpr(
            "concat('key-', id) AS key", f"lpad(id, {size}, '0') AS value", "spark_partition_id() AS partition"
        )
        large = {"kafka.batch.size": "1000000", "kafka.linger.ms": "100", "kafka.buffer.memory": "67108864"}
        frame.write.format("kafka").options(**self._kafka, **large).option("topic", topic).save()

    def noop(self, frame: DataFrame) -> DataStreamWriter:
        """Return a query that discards its rows."""
        return frame.writeStream.format("noop")

    def to_minimq(self, frame: DataFrame, *, transactional: bool) -> DataStreamWriter:
        """Return a query into a topic of minimq."""
        options = {**self._minimq, "topic": "out", "transactional": str(transactional).lower()}
        return frame.writeStream.format("minimq").options(**options)

    def to_kafka(self, frame: DataFrame) -> DataStreamWriter:
        """Return a query into a topic of Kafka."""
        return frame.writeStream.format("kafka").options(**self._kafka).option("topic", "out")

    def start(self, writer: DataStreamWriter, number: int, *, ends: bool) -> StreamingQuery:
        """Start a query; with `ends` it ends after the present messages."""
        writer = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{number}"))
        return (writer.trigger(availableNow=True) if ends else writer).start()


def _chosen(frame: DataFrame, columns: str | None) -> DataFrame:
    return frame.select("offset", "value") if columns else frame


class Cases:
    """All cases.

    Args:
        sides: sources and sinks.
        watch: measures the cases.
        batches: micro-batches of each run of `floor`.
    """

    def __init__(self, sides: Sides, watch: Stopwatch, batches: int) -> None:
        self._sides = sides
        self._watch = watch
        self._batches = batches

    def all(self) -> Iterator[Case]:
        for size, (_, messages) in SIZES.items():
            for columns in (PAIR, None):
                name = f"{size}, {'offset and body' if columns else 'all columns'}"
                read = partial(self._read, topic_of(size), columns)
                yield Case("read", name, partial(read, 0), partial(read, 1))
                follow = partial(self._follow, topic_of(size), columns, messages // 4)
                yield Case("stream", name, partial(follow, 0), partial(follow, 1))
        kafka = partial(self._write, self._sides.to_kafka)
        for name, exactly in (("at least once", False), ("exactly once, Kafka at least once", True)):
            yield Case(
                "write", name, partial(self._write, partial(self._sides.to_minimq, transactional=exactly)), kafka
            )
        for most, name in ((1, "one message"), (QUEUES, "a message in each of 8 queues")):
            floor = partial(self._floor, most, self._sides.noop, self._sides.noop)
            yield Case("floor", name, partial(floor, 0), partial(floor, 1))
        copy = partial(self._floor, QUEUES, partial(self._sides.to_minimq, transactional=True), self._sides.to_kafka)
        yield Case("floor", "8 messages into its own sink, exactly once", partial(copy, 0), partial(copy, 1))

    def _read(self, topic: str, columns: str | None, side: int, _: int) -> Cost:
        return self._watch.measure(lambda: discard(self._sides.read(topic, columns)[side]))

    def _follow(self, topic: str, columns: str | None, most: int, side: int, number: int) -> Cost:
        return self._to_its_end(lambda: self._sides.noop(self._sides.follow(topic, columns, most)[side]), number)

    def _write(self, sink: Callable[[DataFrame], DataStreamWriter], number: int) -> Cost:
        return self._to_its_end(lambda: sink(self._sides.files()), number)

    def _to_its_end(self, make: Callable[[], DataStreamWriter], number: int) -> Cost:
        def work() -> None:
            query = self._sides.start(make(), number, ends=True)
            if not query.awaitTermination(round(_GIVE_UP_S)):
                query.stop()
                raise TimeoutError(f"a query has not ended within {_GIVE_UP_S:.0f} s")

        return self._watch.measure(work)

    def _floor(
        self,
        most: int,
        minimq: Callable[[DataFrame], DataStreamWriter],
        kafka: Callable[[DataFrame], DataStreamWriter],
        side: int,
        number: int,
    ) -> Cost:
        """Measure micro-batches of a continuous query after its warm-up."""
        frame = self._sides.follow(f"few-{most}", PAIR, most)[side]
        if side:
            frame = frame.select("value")
        elif minimq != self._sides.noop:
            frame = frame.select("body")
        query = self._sides.start((kafka if side else minimq)(frame), number, ends=False)
        try:
            wait_for(lambda: _done(query) >= WARM, _GIVE_UP_S, _PAUSE_S)
            before, first = self._watch.now(), _done(query)
            wait_for(lambda: _done(query) >= first + self._batches, _GIVE_UP_S, _PAUSE_S)
            return self._watch.now().since(before).per(_done(query) - first)
        finally:
            query.stop()


def _done(query: StreamingQuery) -> int:
    """Return the number of the last micro-batch. Raises an error if the query has failed."""
    error = query.exception()
    if error is not None:
        raise error
    progress = query.lastProgress
    return -1 if progress is None else progress.batchId


def topic_of(size: str) -> str:
    return "size-" + size.replace(" ", "").lower()


def run(case: Case, runs: int, numbers: Iterator[int]) -> None:
    """Run both sides of a case in turn: once to warm up, and then `runs` times."""
    for turn in range(runs + 1):
        for side in ("minimq", "kafka") if turn % 2 else ("kafka", "minimq"):
            cost = getattr(case, side)(next(numbers))
            if turn:
                case.costs[side].append(cost)


def result(case: Case) -> dict[str, object]:
    """Return the medians of a case, in seconds, and the ratios of minimq to Kafka."""
    shown: dict[str, object] = {"kind": case.kind, "case": case.name}
    totals: dict[str, dict[str, float]] = {}
    for side, costs in case.costs.items():
        totals[side] = {
            "s": statistics.median(cost.seconds for cost in costs),
            "spark": statistics.median(cost.java + cost.python for cost in costs),
            "python": statistics.median(cost.python for cost in costs),
            "broker": statistics.median(cost.broker for cost in costs),
        }
    for side in ("minimq", "kafka"):
        shown |= {f"{side}_{name}": round(value, 3) for name, value in totals[side].items()}
    return shown | {
        f"{name}_ratio": round(totals["minimq"][name] / max(totals["kafka"][name], 0.001), 2) for name in ("s", "spark")
    }


def show(results: list[dict[str, object]]) -> None:
    table = Table("", "", *(f"{side} {name}" for side in ("minimq", "kafka") for name in ("s", "spark", "broker")))
    for name in ("s", "spark"):
        table.add_column(f"{name} ratio", justify="right")
    for line in results:
        values = [line[f"{side}_{name}"] for side in ("minimq", "kafka") for name in ("s", "spark", "broker")]
        table.add_row(str(line["kind"]), str(line["case"]), *map(str, [*values, line["s_ratio"], line["spark_ratio"]]))
    Console(width=160).print(table)


@contextmanager
def spark_with(jars: Path, cores: int) -> Iterator[SparkSession]:
    """Run Spark with its Kafka source in a new Java process during the block."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    found = [path for path in sorted(jars.glob("*.jar")) if path.name.startswith(_JARS)]
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.jars", ",".join(map(str, found)))
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.memory", "3g").config("spark.log.level", "OFF")
    # Keep the progress of all micro-batches of a query.
    session = builder.config("spark.sql.streaming.numRecentProgressUpdates", "200").getOrCreate()
    gateway = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends the Java process
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


def main() -> None:
    """Print the results as lines of JSON, or as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jars", type=Path, required=True, help="folder with those of Spark's source and of a server")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40, help="micro-batches of each run of `floor`")
    parser.add_argument("--share", type=float, default=1.0, help="of the messages that there are otherwise")
    parser.add_argument("--only", help="a kind, or a part of the name of a case")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that all processes are stopped
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-kafka-")))
        (folder / "kafka").mkdir()
        kafka = stack.enter_context(KafkaServer(given.jars / "server", folder / "kafka", QUEUES))
        cluster = stack.enter_context(LocalCluster(brokers=1))
        sides = Sides(cluster.nameserver, kafka.address, folder)
        servers = [server.pid for server in (*cluster.brokers, *cluster.nameservers) if server.pid]
        watch = Stopwatch([*servers, kafka.pid])
        chosen = [
            case
            for case in Cases(sides, watch, given.batches).all()
            if given.only is None or given.only == case.kind or given.only in case.name
        ]
        fresh_spark = partial(spark_with, given.jars / "source", given.cores)
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer, fresh_spark() as sides.spark:
            admin.create_topic("out", queues=QUEUES)
            topics = {topic_of(size): (messages, length) for size, (length, messages) in SIZES.items()}
            topics |= {f"few-{most}": ((given.batches + 2 * WARM) * most, 100) for most in (1, QUEUES)}
            for topic, (messages, length) in topics.items():
                admin.create_topic(topic, queues=QUEUES)
                share = messages if topic.startswith("few") else round(messages * given.share)
                # For one message per micro-batch: Kafka's source reads at least one from each non-empty partition.
                queues = 1 if topic == "few-1" else QUEUES
                fill(producer, topic, share, length, queues)
                sides.fill_kafka(topic, share, length, queues)
            sides.write_files(round(SIZES["100 B"][1] / 2 * given.share))
        numbers = count(1)
        for case in chosen:
            with fresh_spark() as sides.spark:
                run(case, given.runs, numbers)
        results = [result(case) for case in chosen]
    if given.output == "table":
        show(results)
    for line in results if given.output == "json" else ():
        print(json.dumps(line))


if __name__ == "__main__":
    main()
