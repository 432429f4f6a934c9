"""The check-back: members of a producer group are asked how transactions end that their producer has left open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from minimq_broker.core.facts import Fact, HalvesChecked
from minimq_broker.core.held.half_table import Half, HalfOutcome, described
from minimq_broker.core.held.staged_batches import TransactionId
from minimq_broker.core.state import State
from minimq_broker.services.clock import now_ms
from minimq_broker.services.engine import Engine
from minimq_broker.services.held.attending import Attendant, Attendants
from minimq_broker.services.held.halves import HalfOptions, HalfService
from minimq_broker.store.entry import staged_batch
from minimq_broker.store.held.half_drafts import EndStep
from minimq_common.errors import CorruptEntry, MiniMQError, NotMaster, StoreError, SystemBusy
from minimq_common.outage_log import OutageLog
from minimq_proto.v1 import attend_pb2, halves_pb2

log = logging.getLogger(__name__)

#: Time between two looks, in seconds; shorter if the options are.
_LOOK_S = 1.0
#: Most that are asked about, or expire, in one look.
_MOST = 1_000
#: A member that has not read so many bytes is not asked.
_MAX_UNREAD_BYTES = 1 << 20
#: Time between two warnings that some are undecided, in seconds; and how many the log names.
_WARN_S = 600.0
_NAME_MOST = 5


class _Question(NamedTuple):
    """A transaction that a member of its producer group is asked about."""

    transaction: TransactionId
    half: Half
    member: Attendant


class HalfChecks:
    """Asks again and again, from `start` to `stop`, as long as this broker is the master."""

    def __init__(
        self, engine: Engine, options: HalfOptions, halves: HalfService, attendants: Callable[[], Attendants]
    ) -> None:
        self._engine = engine
        self._options = options
        self._halves = halves
        self._attendants = attendants
        #: When somebody was asked last, by the monotonic clock: after a pause of the broker not all at once.
        self._asked: dict[TransactionId, float] = {}
        #: Since when the producer of a transaction is not there, by the same clock: it may be on its way back.
        self._away_since: dict[TransactionId, float] = {}
        self._turn = 0
        self._warn_at = 0.0
        self._outage = OutageLog(log)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="half-checks")

    async def stop(self) -> None:
        """End. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _run(self) -> None:
        options = self._options
        while True:
            await asyncio.sleep(
                min(_LOOK_S, options.check_after_s / 4, options.check_interval_s / 4, options.expiry_s / 2)
            )
            try:
                await self._look()
                self._outage.worked("half messages: checks go on")
            except (SystemBusy, NotMaster) as error:
                log.debug("half messages: not now reason=%s", error)
            except MiniMQError as error:
                self._outage.failed("half messages: not now, will try again error=%s", error.message, cause=error)
            except Exception as error:  # noqa: BLE001 - it has to continue: nobody else asks
                self._outage.crashed("half messages: not now, will try again error=%r", error, cause=error)

    async def _look(self) -> None:
        store = self._engine.store
        open_halves = store.state.transactions.halves.halves.copy()
        if not store.leads or not open_halves:
            self._asked.clear()
            self._away_since.clear()
            return
        for transaction in self._asked.keys() - open_halves:
            del self._asked[transaction]
        await self._expire(open_halves)
        self._look_for_producers(open_halves, time.monotonic())
        due = self._due(open_halves, time.monotonic())
        if due:
            await self._ask(due)
        self._warn(open_halves)

    def _look_for_producers(self, open_halves: Mapping[TransactionId, Half], now: float) -> None:
        present = self._attendants().producers
        self._away_since = {
            transaction: self._away_since.get(transaction, now)
            for transaction, half in open_halves.items()
            if (transaction.name[1:], half.producer_id) not in present
        }

    def _due(self, open_halves: Mapping[TransactionId, Half], now: float) -> list[_Question]:
        options, wall_ms = self._options, now_ms()
        found = []
        for transaction, half in open_halves.items():
            if half.checks >= options.checks or now < self._asked.get(transaction, 0) + options.check_interval_s:
                continue
            due_ms = half.began_ms + (options.check_after_s + half.checks * options.check_interval_s) * 1000
            if wall_ms < due_ms:
                continue
            # After a fail-over, say, others may be back first, and its block may still run: nobody may roll that back.
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
        if own := [member for member in members if producer_id in member.producer_ids]:
            members = own
        self._turn += 1
        for at in range(len(members)):
            member = members[(self._turn + at) % len(members)]
            if member.unread_bytes < _MAX_UNREAD_BYTES:
                return member
        return None

    async def _ask(self, due: Sequence[_Question]) -> None:
        batches = await asyncio.to_thread(self._batches, due)
        now = time.monotonic()
        numbers: dict[str, list[int]] = {}
        for question in due:
            self._asked[question.transaction] = now
            numbers.setdefault(question.transaction.name, []).append(question.transaction.number)
        for name, asked in numbers.items():

            def decide(_: State, name: str = name, asked: tuple[int, ...] = tuple(asked)) -> Fact | None:
                return HalvesChecked(name, asked)

            await self._engine.writes.record(decide, alone=False)
        for question in due:
            transaction, half, member = question
            if transaction in batches:
                topic, batch = batches[transaction]
                check = halves_pb2.CheckHalf(
                    producer_group=transaction.name[1:],
                    number=transaction.number,
                    topic=topic,
                    batch=batch,
                    checks=half.checks,
                )
                member.tell(attend_pb2.AttendEvent(check=check))
                self._engine.counters.half_checks += 1
                log.debug("half messages: asked client=%s about=%s", member.client_id, described(transaction))

    def _batches(self, due: Sequence[_Question]) -> dict[TransactionId, tuple[str, bytes]]:
        found = {}
        with self._engine.handle.reading() as store:
            for transaction, half, _ in due:
                first = half.in_order[0]
                try:
                    batch = bytes(staged_batch(store.log.entry_at(first.position), transaction.name, first))
                except (CorruptEntry, StoreError) as error:
                    log.warning(
                        "half messages: nobody can be asked about=%s error=%s", described(transaction), error.message
                    )
                    continue
                found[transaction] = (store.state.topic_name(first.topic_id) or "", batch)
        return found

    async def _expire(self, open_halves: Mapping[TransactionId, Half]) -> None:
        before_ms = self._engine.deletion_ms() - self._options.expiry_s * 1000
        steps = [
            EndStep(transaction, HalfOutcome.EXPIRED)
            for transaction, half in open_halves.items()
            if half.began_ms < before_ms
        ][:_MOST]
        if not steps:
            return
        await self._halves.end(steps)
        expired = [step.transaction for step in steps if step.is_new and step.stands is HalfOutcome.EXPIRED]
        if expired:
            log.warning(
                "half messages: expired, nobody has decided on them in seconds=%g count=%d first=%s",
                self._options.expiry_s,
                len(expired),
                ", ".join(map(described, expired[:_NAME_MOST])),
            )

    def _warn(self, open_halves: Mapping[TransactionId, Half]) -> None:
        now = time.monotonic()
        if now < self._warn_at:
            return
        undecided = [transaction for transaction, half in open_halves.items() if half.checks >= self._options.checks]
        if undecided:
            self._warn_at = now + _WARN_S
            log.warning(
                "half messages: undecided after checks=%d, and keep their files: minimq transaction list count=%d "
                "first=%s",
                self._options.checks,
                len(undecided),
                ", ".join(map(described, undecided[:_NAME_MOST])),
            )
