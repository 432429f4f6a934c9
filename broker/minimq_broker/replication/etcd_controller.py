"""The controller without its own process: a record in etcd, which every replica changes by the same rules.

These keys begin with `minimq/CLUSTER/BROKER/`:

    record          the `ReplicaSet`; replaced only by transactions that compare its revision
    reports/ID      the latest `ReplicaReport` of a replica

A report is one transaction: it puts the key of the replica, unless another process has changed it meanwhile, and reads
the record. So a master renews its lease by a write, and etcd orders it with all elections. A replica measures the lease
of its master from the moment it sees a new revision of the master's report. Its election compares that revision too,
and fails if the master has reported since. Leases of etcd are not used: only its leader renews them, which may have
been replaced without knowing it; they restart with each leader; and they last whole seconds.

A process runs one transaction at a time, so it sees revisions go back only if etcd was emptied or restored from a
backup. Then it continues as if it had just started, and the time of a lease begins again.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.replicas import election
from minimq_common.replicas import replica_set as rules
from minimq_common.replicas.election import Bootstrap, ReplicaLiveness, check_same, takeover_after
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc

log = logging.getLogger(__name__)

#: Poll interval of the record while an answer is held back. A watch would be more complicated: if its member of etcd
#: fails, it must move to another one without a gap.
_CHECK_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class Stored:
    """The value of a key, and the revision of etcd that put it there."""

    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class EtcdResult:
    """The result of a transaction: whether it succeeded, and all keys with the prefix after it."""

    succeeded: bool
    stored: Mapping[str, Stored]

    @property
    def latest(self) -> int:
        """The revision of the latest put. No key is ever deleted, so a later result never has a smaller one."""
        return max((stored.revision for stored in self.stored.values()), default=0)

    def revision(self, key: str) -> int:
        return self.stored[key].revision if key in self.stored else 0


class EtcdLink:
    def __init__(self, endpoints: Sequence[str], timeout_s: float, security: ChannelSecurity = PLAIN) -> None:
        try:
            self._library = importlib.import_module("aetcd")
        except ImportError:
            text = "a controller in etcd needs a library that is not installed: pip install 'minimq[etcd]'"
            raise InvalidArgument(text) from None
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._security = security
        #: The client of each member (the library has no types), and the certificates with which it was made.
        self._clients: dict[str, tuple[Any, Trust | None]] = {}
        #: Clients with former certificates; their calls continue.
        self._former: list[Any] = []

    async def transact(self, expected: Mapping[str, int], puts: Mapping[str, bytes], prefix: str) -> EtcdResult:
        """Put values if keys have the expected revisions, and return all keys with a prefix, atomically."""
        make = self._library.client.transactions
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        look = make.Get(prefix.encode(), end.encode())
        compare = [make.Mod(key.encode()) == revision for key, revision in expected.items()]
        success = [make.Put(key.encode(), value) for key, value in puts.items()]
        reason = ""
        for endpoint in tuple(self._endpoints):
            try:
                succeeded, responses = await self._client(endpoint).transaction(compare, [*success, look], [look])
            except self._library.ClientError as error:
                reason = rpc.why_unreached(str(error))
                self._endpoints.append(self._endpoints.pop(0))  # try the next one first from now on
            else:
                found = {item.key.decode(): Stored(item.value, item.mod_revision) for _, item in responses[-1]}
                return EtcdResult(succeeded, found)
        raise Unavailable(f"etcd at {', '.join(sorted(self._endpoints))} does not answer: {reason}")

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        former, self._former = self._former, []
        for client in (*former, *(client for client, _ in clients.values())):
            await client.close()

    def _client(self, endpoint: str) -> Any:
        trust = self._security.trust()
        client, known = self._clients.get(endpoint, (None, None))
        if client is None or known is not trust:
            if client is not None:
                self._former.append(client)
            client = self._new_client(endpoint, trust)
            self._clients[endpoint] = client, trust
        return client

    def _new_client(self, endpoint: str, trust: Trust | None) -> Any:
        host, _, port = endpoint.rpartition(":")
        client = self._library.Client(host, int(port), timeout=self._timeout_s, options=dict(rpc.CHANNEL_OPTIONS))
        if trust is not None:

            async def connect() -> None:
                if client.channel is None:
                    client.channel = rpc.open_aio_channel(endpoint, trust)
                    client.kvstub = self._library.rpc.KVStub(client.channel)
                    client._connected.set()

            client.connect = connect
        return client


class EtcdView:
    """One replica set in etcd, as one process sees it and changes it. Lives on one event loop."""

    def __init__(self, link: EtcdLink, key: tuple[str, str], term_lease_s: float) -> None:
        self.record: ReplicaSet | None = None
        self._link = link
        self._term_lease_s = term_lease_s
        self._prefix = f"minimq/{key[0]}/{key[1]}/"
        self._record_key = self._prefix + "record"
        #: Held during a transaction.
        self._turn = asyncio.Lock()
        self._seen: EtcdResult | None = None
        self._liveness: ReplicaLiveness | None = None
        self._bootstrap = Bootstrap(term_lease_s)
        #: When the current value of each key was first seen.
        self._seen_at: dict[str, float] = {}

    def report_key(self, replica_id: int) -> str:
        return f"{self._prefix}reports/{replica_id}"

    def existing(self) -> ReplicaSet:
        """Return the record. Raises `InvalidArgument` if there is none."""
        if self.record is None:
            raise InvalidArgument(f"etcd has no {self._record_key}: no replica has reported yet")
        return self.record

    def is_alive(self, replica_id: int) -> bool:
        return self._liveness is not None and replica_id in self._liveness.alive(time.monotonic())

    def found(self, own: ReplicaReport) -> ReplicaSet | None:
        """Return the first record of the set, once it can be decided; else None."""
        now = time.monotonic()
        self._bootstrap.hear(own, now)
        return self._bootstrap.found(now)

    async def look(self) -> None:
        await self._transact({})

    async def report(self, own: ReplicaReport) -> None:
        key, value = self.report_key(own.replica_id), msgspec.json.encode(own)
        succeeded = False
        while not succeeded:
            if self._seen is None:
                await self.look()
            assert self._seen is not None
            self._check_alone(own, key)
            succeeded = await self._transact({key: value})

    async def mend(self, own: ReplicaReport) -> None:
        """Restore the record that a replica knows, if etcd has lost it."""
        while (told := rules.repaired(self.record, own)) is not self.record:
            assert told is not None
            if await self._put(told):
                log.error("controller: %s", rules.what_was_repaired(told, own))

    def _check_alone(self, own: ReplicaReport, key: str) -> None:
        stored = self._seen.stored.get(key) if self._seen is not None else None
        lease_s = self.record.lease_s if self.record is not None else self._term_lease_s
        if stored is not None and time.monotonic() - self._seen_at[key] < takeover_after(lease_s):
            check_same(msgspec.json.decode(stored.value, type=ReplicaReport), own)

    async def replace(self, record: ReplicaSet, unless_heard: int | None = None) -> bool:
        """Replace the record, unless it has changed or replica `unless_heard` has reported. Returns whether it did."""
        if self.record is not None and self._liveness is not None and self.record.term == record.term:
            record = self._liveness.completed(record, self.record)
        return await self._put(record, unless_heard)

    async def _put(self, record: ReplicaSet, unless_heard: int | None = None) -> bool:
        guards = [] if unless_heard is None else [self.report_key(unless_heard)]
        return await self._transact({self._record_key: msgspec.json.encode(record)}, *guards)

    async def _transact(self, puts: Mapping[str, bytes], *guards: str) -> bool:
        assert self._seen is not None or not puts
        expected = {key: self._seen.revision(key) for key in (*puts, *guards)} if self._seen is not None else {}
        async with self._turn:
            outcome = await self._link.transact(expected, puts, self._prefix)
            self._take(outcome)
        return outcome.succeeded

    async def elect(self) -> None:
        """Elect a master if it is time. If another process was faster or the master is back, only update the view."""
        if self.record is None or self._liveness is None:
            return
        elected = self._liveness.elect(self.record, time.monotonic(), self._term_lease_s)
        if elected is not None:
            await self.replace(elected, unless_heard=self.record.master_id)

    async def wait(self, deadline: float | None = None) -> None:
        """Poll again after a moment, at `deadline`, or when it may be time for an election."""
        now = time.monotonic()
        until = now + _CHECK_INTERVAL_S if deadline is None else min(now + _CHECK_INTERVAL_S, deadline)
        if self.record is not None and self._liveness is not None:
            until = min(until, self._liveness.next_look_at(self.record, now))
        await asyncio.sleep(max(0.0, until - now))
        await self.look()
        await self.elect()

    def _take(self, outcome: EtcdResult) -> None:
        now = time.monotonic()
        if self._seen is not None and outcome.latest < self._seen.latest:
            log.error(
                "controller: etcd has older keys below %s than before, so it was emptied or restored from a backup: "
                "replicas restore the record that they know",
                self._prefix,
            )
            self._seen, self._liveness, self._bootstrap = None, None, Bootstrap(self._term_lease_s)
            self._seen_at.clear()
        before, self._seen = self._seen, outcome
        record = outcome.stored.get(self._record_key)
        self.record = msgspec.json.decode(record.value, type=ReplicaSet) if record else None
        if self.record is None:
            self._liveness = None
        elif self._liveness is None:
            self._liveness = ReplicaLiveness(self.record, now)
        for key, stored in sorted(outcome.stored.items(), key=lambda item: item[1].revision):
            if before is not None and stored.revision == before.revision(key):
                continue
            self._seen_at[key] = now
            if key == self._record_key:
                if self.record is not None and self._liveness is not None:
                    self._liveness.adopt(self.record, now)
            else:
                self._hear(msgspec.json.decode(stored.value, type=ReplicaReport), now, is_old=before is None)

    def _hear(self, report: ReplicaReport, now: float, *, is_old: bool) -> None:
        if self.record is None or self._liveness is None:
            self._bootstrap.hear(report, now)  # old reports too: the first election waits for replicas with a log
        elif is_old:
            self._liveness.measure(self.record, report)
        else:
            self._liveness.hear(self.record, report, now)


class EtcdController:
    """Keeps the record in etcd. The protocol `Controller` documents its methods."""

    def __init__(self, endpoints: Sequence[str], term_lease_s: float, security: ChannelSecurity = PLAIN) -> None:
        # Short enough that a report reaches the last of three members before the lease expires.
        self._link = EtcdLink(endpoints, timeout_s=max(term_lease_s / 5, 0.5), security=security)
        self._term_lease_s = term_lease_s
        self._views: dict[tuple[str, str], EtcdView] = {}

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        deadline = time.monotonic() + wait_s
        view = self._view(report.key)
        await view.report(report)
        await view.mend(report)
        if view.record is None and (founded := view.found(report)) is not None:
            await view.replace(founded)
        if view.record is not None and (renewed := rules.renew(view.record, report)) is not view.record:
            await view.replace(renewed)  # if this fails, the next report tries again
        await view.elect()
        while not rules.is_news(view.record, report) and time.monotonic() < deadline:
            await view.wait(deadline)
        if rules.repaired(view.record, report) is not view.record:  # the next report restores it
            raise Unavailable(f"etcd has just lost the record of {report.broker_name}: the next report restores it")
        if view.record is not None:
            rules.check_not_ending(view.record, report)
        return view.record

    async def change_in_sync(self, known: ReplicaSet, in_sync: Collection[int]) -> ReplicaSet:
        view = self._view(known.key)
        await view.look()
        while True:
            changed = rules.change_in_sync(view.existing(), known, in_sync)
            if changed is view.record or await view.replace(changed):
                return changed

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        view = self._view((cluster, broker_name))
        await view.look()
        deadline = time.monotonic() + election.takeover_after(view.existing().lease_s)
        while not view.is_alive(replica_id):
            if time.monotonic() >= deadline:
                raise InvalidArgument(f"replica {replica_id} of {view.record} does not report: start it first")
            await view.wait(deadline)
        while True:
            known = view.existing()
            promoted = election.promote(known, replica_id, unclean=unclean)
            if promoted is known:  # it is, or will be, the master already
                break
            if await view.replace(promoted):
                is_unclean, what = election.what_was_promoted(promoted, replica_id)
                log.log(logging.ERROR if is_unclean else logging.INFO, "controller: %s", what)
                break
        while (record := view.existing()).successor is not None:
            await view.wait()
        election.check_promoted(record, replica_id)
        return record

    async def close(self) -> None:
        await self._link.close()

    def _view(self, key: tuple[str, str]) -> EtcdView:
        if key not in self._views:
            self._views[key] = EtcdView(self._link, key, self._term_lease_s)
        return self._views[key]
