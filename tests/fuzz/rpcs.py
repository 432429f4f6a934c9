"""Every RPC of every server against calls made at random, beside a canary whose messages have to arrive.

The servers are a name server, which is the controller as well, a broker that is the master and one that is its slave.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fuzz.calls import POOLS, TOPICS, Caller, Finding, Rpc, open_channel, rpcs_of
from fuzz.canary import TOPIC, Canary, losses
from minimq import Admin, LocalCluster, MinimqError, Permission
from minimq.local.server_process import ServerProcess
from minimq_broker.backup.check import check_directory
from support.protocol import SERVICES, is_of_nameserver
from support.reading import read_all
from support.replicas import wait_for_master

#: Calls that are under way at the same time.
_CALLS: Final = 32
#: Connections to each server.
_CHANNELS: Final = 4
_MAX_RSS_BYTES: Final = 512 << 20
#: What a server may log for each call.
_MAX_LOG_BYTES: Final = 2000
_REPAIR_S: Final = 0.2
_TOLD_EVERY_S: Final = 30.0
#: Most findings of one kind that are told.
_EXAMPLES: Final = 3


def play(seed: int, amount: int, only: str = "", first: int = 0) -> list[str]:
    """Make calls, and return what was found; `only` is in the names of the RPCs."""
    with tempfile.TemporaryDirectory(prefix="minimq-fuzz-") as directory:
        found = _play_in(Path(directory), seed, range(first, first + amount), only)
        if found:
            _keep_logs(Path(directory))
        return found


def _play_in(directory: Path, seed: int, numbers: range, only: str) -> list[str]:
    broker_options = {"role": "sync-master", "segment_bytes": 16 << 20}
    with LocalCluster(
        brokers=1, slaves=1, data_dir=directory, broker_options=broker_options, nameserver_options={"term_lease_s": 3.0}
    ) as cluster:
        servers = (*cluster.nameservers, *cluster.brokers)
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        canary = Canary(cluster.nameserver)
        canary.start()
        found = asyncio.run(_Run(seed, cluster, only).run(numbers))
        canary.stop()
        print(
            f"  canary: {len(canary.acknowledged)} acknowledged, {len(canary.failures)} failed, slowest "
            f"{canary.slowest_s:.1f} s",
            flush=True,
        )
        # A send that fails is told to its sender; that may be, where others take topics their permission away.
        found += canary.failures[:_EXAMPLES] if not canary.acknowledged else []
        found += losses(canary.acknowledged, canary.read, once_more=True)
        found += [text for server in servers for text in _health_of(server, len(numbers))]
        found += _restarted(cluster, canary)
    for server in servers:
        found += _log_of(server)
    for broker in cluster.brokers:
        found += [f"{broker.name}: check: {finding}" for finding in check_directory(broker.data_dir).findings]
    return found


class _Run:
    """The calls of one run."""

    def __init__(self, seed: int, cluster: LocalCluster, only: str) -> None:
        self._seed = seed
        self._only = only
        self._addresses = [server.address for server in (*cluster.nameservers, *cluster.brokers)]
        kinds = [[each.name for each in SERVICES if is_of_nameserver(each) == own] for own in (True, False)]
        self._services = [kinds[0]] * len(cluster.nameservers) + [kinds[1]] * len(cluster.brokers)
        self._admin = Admin(cluster.nameserver)
        self._found: list[Finding] = []
        self._kinds: dict[str, int] = {}
        self._made = 0

    async def run(self, numbers: range) -> list[str]:
        channels = [[open_channel(address) for _ in range(_CHANNELS)] for address in self._addresses]
        rpcs = [
            rpc
            for server, kinds in enumerate(self._services)
            for rpc in rpcs_of(server, [f"minimq.v1.{kind}" for kind in kinds])
        ]
        rpcs = [rpc for rpc in rpcs if self._only in rpc.path]
        callers = [Caller(self._seed, rpcs, [opened[place] for opened in channels]) for place in range(_CHANNELS)]
        repair = asyncio.create_task(self._repair())
        told = asyncio.create_task(self._tell(numbers))
        await asyncio.gather(*(self._work(callers[place % _CHANNELS], numbers) for place in range(_CALLS)))
        for task in (repair, told):
            task.cancel()
        await asyncio.to_thread(self._make_well)
        self._admin.close()
        for opened in channels:
            for channel in opened:
                await channel.close()
        self._tell_ends(callers, rpcs)
        more = [f"{kind}: {times} times" for kind, times in self._kinds.items() if times > _EXAMPLES]
        return [*map(str, self._found), *more]

    async def _work(self, caller: Caller, numbers: range) -> None:
        while self._made < len(numbers):
            number = numbers[self._made]
            self._made += 1
            finding = await caller.call(number)
            if finding is None:
                continue
            kind = f"{finding.rpc.path}: {re.sub(r'[0-9]+', 'N', finding.what)[:60]}"
            self._kinds[kind] = self._kinds.get(kind, 0) + 1
            if self._kinds[kind] <= _EXAMPLES:
                self._found.append(finding)

    async def _repair(self) -> None:
        """Undo what other calls have done and what would leave nothing to play with."""
        while True:
            await asyncio.sleep(_REPAIR_S)
            await asyncio.to_thread(self._make_well)

    def _make_well(self) -> None:
        with contextlib.suppress(MinimqError):  # at the next time
            self._admin.set_broker_permission("broker-a", Permission.READ_WRITE)
            for topic in TOPICS:
                self._admin.create_topic(topic, queues=4, if_not_exists=True)

    async def _tell(self, numbers: range) -> None:
        begun = time.monotonic()
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            rate = self._made / (time.monotonic() - begun)
            print(f"  call {numbers.start + self._made:,} of {numbers.stop:,}, {rate:.0f}/s", flush=True)

    def _tell_ends(self, callers: list[Caller], rpcs: list[Rpc]) -> None:
        ends: dict[str, int] = {}
        for caller in callers:
            for end, times in caller.ends.items():
                status = end.rpartition(" ")[2]
                ends[status] = ends.get(status, 0) + times
        print(f"  {len(rpcs)} RPCs with {len(POOLS)} pools: {dict(sorted(ends.items()))}", flush=True)


def _health_of(server: ServerProcess, amount: int) -> Iterator[str]:
    if not server.running:
        yield f"{server.name} has ended with {server.end}: {server.log_tail()}"
        return
    status = Path(f"/proc/{server.pid}/status").read_text()
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    size = server.log_path.stat().st_size
    print(f"  {server.name}: {int(peak) >> 10} MiB at most, {size >> 10} KiB of log", flush=True)
    if int(peak) << 10 > _MAX_RSS_BYTES:
        yield f"{server.name} has taken {int(peak) >> 10} MiB"
    if size > (1 << 20) + _MAX_LOG_BYTES * amount:
        yield f"{server.name} has written {size >> 20} MiB of log"


def _restarted(cluster: LocalCluster, canary: Canary) -> list[str]:
    """Stop all servers, start them on their data, and read the messages of the canary again."""
    servers = (*cluster.brokers, *cluster.nameservers)
    found = []
    for server in servers:
        server.stop()
        if server.end != "status 0":
            found.append(f"{server.name} ended with {server.end}")
    for server in reversed(servers):
        server.launch()
    for server in reversed(servers):
        server.wait_ready()
    wait_for_master(cluster)  # a slave does not know yet what of its end is confirmed
    bodies = [message.body for message in read_all(cluster.nameserver, TOPIC)]
    return found + [f"after the restart: {text}" for text in losses(canary.acknowledged, bodies)]


def _log_of(server: ServerProcess) -> Iterator[str]:
    """Yield what a server has logged that it did not foresee."""
    lines = server.log_path.read_text(errors="replace").splitlines()
    for place, line in enumerate(lines):
        if "unexpected error" in line or "Traceback" in line:
            yield f"{server.name} logged: " + " | ".join(lines[max(place - 1, 0) : place + 12])[:1500]
            return


def _keep_logs(directory: Path) -> None:
    kept = Path(tempfile.mkdtemp(prefix="minimq-fuzz-logs-"))
    for path in directory.glob("*.log"):
        path.rename(kept / path.name)
    print(f"  the logs are in {kept}", flush=True)
