"""A producer under steady load while a broker dies or hangs: real processes on this machine, one line per run.

The load is an open loop: messages are sent when they are due, regardless of the outcome of earlier ones. Latency is the
time from the call of `send_async` to the call of its callback. Afterwards all stored messages are compared with the
receipts.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from processes import machine_busy_seconds
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from steady_load import Faults, Load

import minimq
from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.local.server_process import ServerProcess

TOPIC = "faults"
QUEUES_PER_BROKER = 4
WARM = b"warm"

BIN_S = 0.1
#: The rate has recovered when this number of consecutive bins have, on average, this share of the offered load. A bin
#: above the offered load counts as 1, so it does not compensate for others.
BINS_IN_A_ROW = 5
ENOUGH = 0.95

KILL_RATE, KILL_AT_S, START_AT_S, KILL_LASTS_S = 20_000, 3.0, 6.0, 10.0
HANG_RATES, PAUSE_AT_S, RESUME_AT_S, HANG_LASTS_S = (200, 2_000), 2.0, 17.0, 20.0
#: Period after the fault whose latencies are reported, and time until producers should avoid the hanging broker.
FIRST_S, AVOIDED_AFTER_S = 10.0, 2.0


@dataclass
class Stored:
    """The comparison of the stored messages with the receipts, in numbers of messages.

    Attributes:
        lost: acknowledged, but not stored where the receipt says.
        twice: more than once on one broker.
        on_both: on both brokers, which is allowed if an answer was lost.
    """

    lost: int
    twice: int
    on_both: int


@dataclass
class Line:
    """One line of either table. Latencies in ms; times in seconds after the fault.

    Attributes:
        name: scenario and rate.
        failed: sends that raised an error.
        p50_ms: of messages sent within `FIRST_S` after the fault; so are the other three.
        avoided_p999_ms: of messages sent while the broker should be avoided; None if it was killed.
        rate_back_s: until the acknowledged rate had recovered; None if it never did.
        low_s: total time after the fault in which less than half of the offered load was acknowledged.
        broker_back_s: from the end of the fault to the next ack of the broker; None if there was none.
        silence_ms: longest time after the fault without any ack.
        stored: comparison with the messages on disk.
        behind_ms: maximum lateness of the load generator.
        machine_cpu_s: of the whole machine during the load; more than on a quiet machine means noise.
        per_bin: acks per 100 ms, starting one second before the fault.
        errors: texts of some errors.
    """

    name: str
    failed: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    avoided_p999_ms: float | None
    rate_back_s: float | None
    low_s: float
    broker_back_s: float | None
    silence_ms: float
    stored: Stored
    behind_ms: float
    machine_cpu_s: float
    per_bin: list[int]
    errors: list[str]


@contextmanager
def two_brokers() -> Iterator[tuple[LocalCluster, Producer]]:
    """Run two brokers in empty directories with one topic, and a producer that has sent to every queue."""
    with LocalCluster(brokers=2) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
        with Producer(cluster.nameserver) as producer:
            for _ in range(10 * QUEUES_PER_BROKER):
                producer.send(Message(TOPIC, WARM))
            yield cluster, producer


def kill(tell: Callable[[float], None]) -> Iterator[Line]:
    """Kill one of two brokers under heavy load, and restart it."""
    with two_brokers() as (cluster, producer):
        victim = cluster.brokers[0]
        load = Load(producer, TOPIC, KILL_RATE, KILL_LASTS_S, step_s=0.005)
        faults = Faults([(KILL_AT_S, victim.kill), (START_AT_S, victim.start)])
        cpu_s = run_with(load, faults, tell)
        yield measured(f"kill -9 at {KILL_RATE:,}/s", load, faults, cluster, victim, cpu_s)


def hang(tell: Callable[[float], None]) -> Iterator[Line]:
    """Pause one of two brokers for a while; single messages at two rates."""
    for number, rate in enumerate(HANG_RATES):
        with two_brokers() as (cluster, producer):
            victim = cluster.brokers[0]
            load = Load(producer, TOPIC, rate, HANG_LASTS_S, step_s=1 / rate)
            faults = Faults([(PAUSE_AT_S, victim.pause), (RESUME_AT_S, victim.resume)])
            cpu_s = run_with(load, faults, lambda share: tell((number + share) / len(HANG_RATES)))  # noqa: B023
            line = measured(f"SIGSTOP at {rate:,}/s", load, faults, cluster, victim, cpu_s)
            avoided = load.latencies_ms(faults.began_at[0] + AVOIDED_AFTER_S, faults.began_at[1])
            line.avoided_p999_ms = quantile(avoided, 0.999)
            yield line


def run_with(load: Load, faults: Faults, tell: Callable[[float], None]) -> float:
    """Run a load with concurrent faults. Returns the CPU seconds of the machine meanwhile."""
    gc.collect()
    gc.freeze()  # so that collections do not traverse the prepared messages
    cpu_s = machine_busy_seconds()
    began = time.perf_counter() + 0.1
    beside = threading.Thread(target=faults.carry_out, args=(began,))
    beside.start()
    ends = faults.plan[-1][0]
    load.run(began, lambda: tell(min(1.0, (time.perf_counter() - began) / ends)))
    beside.join()
    gc.unfreeze()
    return machine_busy_seconds() - cpu_s


def measured(name: str, load: Load, faults: Faults, cluster: LocalCluster, victim: ServerProcess, cpu_s: float) -> Line:
    broken, repaired = faults.began_at[0], faults.ended_at[-1]
    latencies = load.latencies_ms(broken, broken + FIRST_S)
    per_bin = acknowledged_per_bin(load, broken - 1.0)
    returned = [done for done, receipt in load.acknowledged() if receipt.queue.broker_name == victim.name]
    return Line(
        name=name,
        failed=len(load.errors),
        p50_ms=quantile(latencies, 0.5),
        p99_ms=quantile(latencies, 0.99),
        p999_ms=quantile(latencies, 0.999),
        max_ms=latencies[-1],
        avoided_p999_ms=None,
        rate_back_s=rate_back_s(load, broken),
        low_s=low_s(load, broken),
        broker_back_s=min((done - repaired for done in returned if done > repaired), default=None),
        silence_ms=silence_ms(load, broken),
        stored=compare(load, cluster),
        behind_ms=load.behind_s * 1000,
        machine_cpu_s=cpu_s,
        per_bin=per_bin,
        errors=[str(error) for error in load.errors[:3]],
    )


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


def acknowledged_per_bin(load: Load, since: float) -> list[int]:
    """Return the number of acks in each bin until the last send."""
    counts = Counter(int((done - since) // BIN_S) for done, _ in load.acknowledged())
    return [counts[number] for number in range(int((load.handed_in[-1] - since) / BIN_S))]


def shares_per_bin(load: Load, since: float) -> list[float]:
    """Return the share of the offered load that was acknowledged in each bin, at most 1."""
    offered = len(load.handed_in) / (load.handed_in[-1] - load.handed_in[0]) * BIN_S
    return [min(1.0, count / offered) for count in acknowledged_per_bin(load, since)]


def rate_back_s(load: Load, broken: float) -> float | None:
    """Return the seconds until the acknowledged rate had recovered; None if it never did."""
    shares = shares_per_bin(load, broken)
    for first in range(len(shares) - BINS_IN_A_ROW + 1):
        if sum(shares[first : first + BINS_IN_A_ROW]) >= ENOUGH * BINS_IN_A_ROW:
            return round(first * BIN_S, 1)
    return None


def low_s(load: Load, broken: float) -> float:
    """Return the seconds in which less than half of the load was acknowledged."""
    return sum(share < 0.5 for share in shares_per_bin(load, broken)) * BIN_S


def silence_ms(load: Load, broken: float) -> float:
    """Return the longest time between two acks, until the last send."""
    moments = sorted(done for done, _ in load.acknowledged() if done >= broken)
    moments = [broken, *moments, max(load.handed_in[-1], moments[-1])] if moments else [broken, load.handed_in[-1]]
    return max(later - earlier for earlier, later in itertools.pairwise(moments)) * 1000


def compare(load: Load, cluster: LocalCluster) -> Stored:
    """Read all queues of both brokers, and compare them with the receipts."""
    places: dict[int, list[tuple[str, int, int]]] = {}
    with Admin(cluster.nameserver) as admin:
        queues = admin.route(TOPIC).read_queues()
    assert len(queues) == 2 * QUEUES_PER_BROKER
    with PullConsumer(cluster.nameserver, group="comparing", auto_commit=False) as consumer:
        consumer.assign(queues)
        while not consumer.at_end():
            for message in consumer.poll(0.05):
                if message.body != WARM:
                    place = (message.queue.broker_name, message.queue.queue_id, message.queue_offset)
                    places.setdefault(int(message.body.rstrip(b"\0")), []).append(place)
    lost = 0
    for number, receipt in enumerate(load.receipts):
        if receipt is not None:
            said = (receipt.queue.broker_name, receipt.queue.queue_id, receipt.queue_offset)
            lost += said not in places.get(number, ())
    brokers = [Counter(broker for broker, _, _ in found) for found in places.values()]
    return Stored(
        lost=lost,
        twice=sum(max(found.values()) > 1 for found in brokers),
        on_both=sum(len(found) > 1 for found in brokers),
    )


SCENARIOS = {"kill": kill, "hang": hang}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(SCENARIOS)))
@click.option("--runs", default=3, show_default=True, help="How often; each run is a line.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: tuple[str, ...], runs: int, output: str) -> None:
    """Run the scenarios NAMES, or all of them."""
    chosen = [(name, run) for name in names or SCENARIOS for run in range(1, runs + 1)]
    lines: list[Line] = []
    # Drawn only once per second: the drawing thread belongs to the measured process.
    with Progress(console=Console(stderr=True), refresh_per_second=1, transient=True) as progress:
        for name, run in chosen:
            task = progress.add_task(f"{name}, run {run} of {runs}", total=1.0)
            lines += SCENARIOS[name](lambda share: progress.update(task, completed=share))  # noqa: B023
    if output == "json":
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return
    show(lines)


def show(lines: list[Line]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    latency = Table("scenario", "failed", "p50", "p99", "p99.9", "max", "p99.9 avoided", "silence", "late by", "CPU")
    kept = Table("scenario", "rate back", "below half", "broker", "lost", "twice", "on both", "acknowledged per 100 ms")
    for line in lines:
        quantiles = (line.p50_ms, line.p99_ms, line.p999_ms, line.max_ms, line.avoided_p999_ms)
        delays = (line.silence_ms, line.behind_ms)
        latency.add_row(line.name, str(line.failed), *map(in_ms, quantiles + delays), f"{line.machine_cpu_s:.1f} s")
        back = (line.rate_back_s, line.low_s, line.broker_back_s)
        stored = (line.stored.lost, line.stored.twice, line.stored.on_both)
        kept.add_row(line.name, *map(in_s, back), *map(str, stored), bars(line.per_bin[:70]))
    console.print(f"\nminimq in {Path(minimq.__file__).parent}; two brokers, one of them with the fault")
    console.print(
        f"latencies of what was handed in within {FIRST_S:g} s after the fault; avoided: from {AVOIDED_AFTER_S:g} s "
        "after it to its end; silence: nobody acknowledged anything; late by: the load itself"
    )
    console.print(latency)
    console.print(
        "rate back: after the fault; broker: from its return to its next acknowledgement; lost: acknowledged and gone; "
        "twice: on one broker; the last column begins one second before the fault"
    )
    console.print(kept)
    for text in dict.fromkeys(text for line in lines for text in line.errors):
        console.print(text, markup=False, style="red")


def in_ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} ms"


def in_s(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def bars(counts: Sequence[int]) -> str:
    """Return one character for each count."""
    highest = max(sorted(counts)[len(counts) // 2] * 1.25, 1.0)
    return "".join(" ▁▂▃▄▅▆▇█"[min(round(count / highest * 8), 8)] for count in counts)


if __name__ == "__main__":
    main()
