"""The controller without its own process: a record in etcd, which every replica changes by the same rules."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from minimq_broker.replication.etcd_view import EtcdLink, EtcdView
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.replicas import election
from minimq_common.replicas import replica_set as rules
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from minimq_common.security.channel_security import PLAIN, ChannelSecurity

log = logging.getLogger(__name__)


class EtcdController:
    """Keeps the record in etcd. The protocol `Controller` documents its methods."""

    def __init__(self, endpoints: Sequence[str], term_lease_s: float, security: ChannelSecurity = PLAIN) -> None:
        # Short enough that a report reaches the last of three members before the lease expires.
        self._link = EtcdLink(endpoints, timeout_s=max(term_lease_s / 5, 0.5), security=security)
        self._term_lease_s = term_lease_s
        self._views: dict[tuple[str, str], EtcdView] = {}

    async def report(self, report: ReplicaReport, *, wait_s: float = 0.0) -> ReplicaSet | None:
        """Report that a replica is alive, and return the record."""
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
        """Replace the in-sync set and return the new record."""
        view = self._view(known.key)
        await view.look()
        while True:
            changed = rules.change_in_sync(view.existing(), known, in_sync)
            if changed is view.record or await view.replace(changed):
                return changed

    async def promote(self, cluster: str, broker_name: str, replica_id: int, *, unclean: bool = False) -> ReplicaSet:
        """Make a replica the master, and return the new record."""
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
        """Close the connections; calls in progress fail."""
        await self._link.close()

    def _view(self, key: tuple[str, str]) -> EtcdView:
        if key not in self._views:
            self._views[key] = EtcdView(self._link, key, self._term_lease_s)
        return self._views[key]
