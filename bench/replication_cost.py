"""The cost of a synchronous slave: the same workload with and without one, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kill_runs import Plan
from processes import cpu_seconds, run

from minimq import Admin, LocalCluster

_MANY, _SINGLE = 500_000, 3_000
_MILLION = 1_000_000
_TOPIC = "cost"


@dataclass
class CostLine:
    """Medians of several runs; CPU is in seconds per million messages of `send_many`."""

    slaves: int
    per_second: float
    client_cpu: float
    master_cpu: float
    slave_cpu: float
    p50_ms: float
    p99_ms: float


def cost(plan: Plan, folder: Path) -> list[CostLine]:
    """Measure both in turn, `plan.rounds` times."""
    runs: dict[int, list[CostLine]] = {0: [], 1: []}
    with ExitStack() as stack:
        clusters: dict[int, LocalCluster] = {}
        for slaves in runs:
            options = {"role": "sync-master", "min_in_sync": 2} if slaves else {}
            cluster = LocalCluster(1, slaves, data_dir=folder / f"slaves-{slaves}", broker_options=options)
            clusters[slaves] = stack.enter_context(cluster)
            with Admin(cluster.nameserver) as admin:
                admin.create_topic(_TOPIC, queues=8)
        for number in range(plan.rounds):
            for slaves, cluster in clusters.items():
                plan.tell(number / plan.rounds, f"{slaves} slaves")
                runs[slaves].append(measured(cluster, slaves))
    return [middle(lines) for lines in runs.values()]


def measured(cluster: LocalCluster, slaves: int) -> CostLine:
    """Measure `send_many`, then single sends."""
    pids = [broker.pid for broker in cluster.brokers if broker.pid is not None]
    before = [cpu_seconds(pid) for pid in pids]
    many = run("produce", nameserver=cluster.nameserver, topic=_TOPIC, count=_MANY, size=100)
    used = [(cpu_seconds(pid) - began) / many["count"] * _MILLION for pid, began in zip(pids, before, strict=True)]
    single = run("send_one_by_one", nameserver=cluster.nameserver, topic=_TOPIC, count=_SINGLE)
    return CostLine(
        slaves=slaves,
        per_second=many["count"] / many["seconds"],
        client_cpu=many["cpu_s"] / many["count"] * _MILLION,
        master_cpu=used[0],
        slave_cpu=sum(used[1:]),
        p50_ms=single["p50_ms"],
        p99_ms=single["p99_ms"],
    )


def middle(lines: Sequence[CostLine]) -> CostLine:
    """Return the median of each figure."""

    def of(figure: Callable[[CostLine], float]) -> float:
        return median(map(figure, lines))

    return CostLine(
        slaves=lines[0].slaves,
        per_second=of(lambda line: line.per_second),
        client_cpu=of(lambda line: line.client_cpu),
        master_cpu=of(lambda line: line.master_cpu),
        slave_cpu=of(lambda line: line.slave_cpu),
        p50_ms=of(lambda line: line.p50_ms),
        p99_ms=of(lambda line: line.p99_ms),
    )
