"""The check-back: members of a producer group are asked how transactions end that their producer has left open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from minimq_broker.core.held.half_outcomes import described
from minimq_broker.core.held.staged_batches import OpenHalf, TransactionId
from minimq_broker.services.clock import now_ms
from minimq_broker.services.engine import Engine
from minimq_broker.services.held.attending import Attendant, Attendants
from minimq_broker.services.held.halves import FirstBatch, HalfOptions, HalfService, first_batch
from minimq_common.serving.periodic import PeriodicTask
from minimq_proto.v1 import attend_pb2, halves_pb2

log = logging.getLogger(__name__)

#: Longest pause between two rounds, in seconds.
_ROUND_S = 1.0
#: Questions, and expired transactions, of one round.
_MOST = 1_000
#: Unread bytes from which on the broker asks a member nothing more.
_MAX_UNREAD_BYTES = 1 << 20
#: Seconds between two warnings that some are undecided; and how many the log names.
_WARN_S = 600.0
_NAME_MOST = 5


class _Question(NamedTuple):
    transaction: TransactionId
    half: OpenHalf
    member: Attendant


class HalfChecks(PeriodicTask):
    """Asks while this broker is the master."""

    def __init__(
        self, engine: Engine, options: HalfOptions, halves: HalfService, attendants: Callable[[], Attendants]
    ) -> None:
        self._engine = engine
        self._options = options
        self._halves = halves
        self._attendants = attendants
        #: By the monotonic clock, so that a broker that stood still does not ask all at once.
        self._asked_at: dict[TransactionId, float] = {}
        #: Since when the producer of a transaction is not there, by the same clock: it may be on its way back.
        self._away_since: dict[TransactionId, float] = {}
        self._turn = 0
        self._warn_at = 0.0
        pause_s = min(_ROUND_S, options.check_after_s / 4, options.check_interval_s / 4, options.expiry_s / 2)
        super().__init__("half messages", self._look, pause_s, log)

    async def _look(self) -> None:
        store = self._engine.store
        halves = store.state.transactions.open_halves() if store.leads else {}
        checks, present, now = self._engine.tables.half_checks, self._attendants().producers, time.monotonic()
        for ended in checks.keys() - halves.keys():
            del checks[ended]
        self._asked_at = {transaction: at for transaction, at in self._asked_at.items() if transaction in halves}
        self._away_since = {
            transaction: self._away_since.get(transaction, now)
            for transaction, half in halves.items()
            if (transaction.name[1:], half.producer_id) not in present
        }
        await self._expire(halves)
        if due := self._due(halves, now):
            self._ask(due, await asyncio.to_thread(self._batches, due), now)
        self._warn([transaction for transaction in halves if checks.get(transaction, 0) >= self._options.checks])

    def _due(self, halves: Mapping[TransactionId, OpenHalf], now: float) -> list[_Question]:
        options, checks = self._options, self._engine.tables.half_checks
        began_before_ms = now_ms() - options.check_after_s * 1000
        found = []
        for transaction, half in halves.items():
            if half.stage.began_ms > began_before_ms or checks.get(transaction, 0) >= options.checks:
                continue
            if now < self._asked_at.get(transaction, 0) + options.check_interval_s:
                continue
            # After a fail-over, say, other members may be back before the producer, whose block may still run.
            if now < self._away_since.get(transaction, 0) + options.check_after_s:
                continue
            member = self._member(transaction.name[1:], half.producer_id)
            if member is not None:
                found.append(_Question(transaction, half, member))
                if len(found) == _MOST:
                    break
        return found

    def _member(self, group: str, producer_id: int) -> Attendant | None:
        members = self._attendants().of_producer_group(group)
        members = [member for member in members if producer_id in member.producer_ids] or members
        self._turn += 1
        for at in range(len(members)):
            member = members[(self._turn + at) % len(members)]
            if member.unread_bytes < _MAX_UNREAD_BYTES:
                return member
        return None

    def _batches(self, due: Sequence[_Question]) -> list[FirstBatch | None]:
        with self._engine.handle.reading() as store:
            return [first_batch(store, transaction, half) for transaction, half, _ in due]

    def _ask(self, due: Sequence[_Question], batches: Sequence[FirstBatch | None], now: float) -> None:
        checks = self._engine.tables.half_checks
        for (transaction, _, member), first in zip(due, batches, strict=True):
            self._asked_at[transaction] = now
            checks[transaction] = checks.get(transaction, 0) + 1
            if first is not None:
                check = halves_pb2.CheckHalf(
                    producer_group=transaction.name[1:],
                    number=transaction.number,
                    topic=first.topic,
                    batch=first.data,
                    checks=checks[transaction],
                )
                member.tell(attend_pb2.AttendEvent(check=check))
                self._engine.counters.half_checks += 1
                log.debug("half messages: asked client=%s about=%s", member.client_id, described(transaction))

    async def _expire(self, halves: Mapping[TransactionId, OpenHalf]) -> None:
        before_ms = self._engine.deletion_ms() - self._options.expiry_s * 1000
        old = [transaction for transaction, half in halves.items() if half.stage.began_ms < before_ms]
        if old and (expired := await self._halves.expire(old[:_MOST])):
            log.warning(
                "half messages: expired, not decided in time seconds=%g count=%d first=%s",
                self._options.expiry_s,
                len(expired),
                ", ".join(map(described, expired[:_NAME_MOST])),
            )

    def _warn(self, undecided: Sequence[TransactionId]) -> None:
        now = time.monotonic()
        if undecided and now >= self._warn_at:
            self._warn_at = now + _WARN_S
            log.warning(
                "half messages: undecided after checks=%d, and keep their files: minimq transaction list count=%d "
                "first=%s",
                self._options.checks,
                len(undecided),
                ", ".join(map(described, undecided[:_NAME_MOST])),
            )
