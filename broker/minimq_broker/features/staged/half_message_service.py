"""Half messages: ends their transactions, and asks producers about those that stay open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.store import Store
from minimq_broker.features.staged.event_service import EventClient
from minimq_broker.features.staged.flags import StagedFlags
from minimq_broker.features.staged.jobs import EndJob, held_key
from minimq_broker.features.staged.life_cycles import HalfMessages
from minimq_broker.features.staged.staging import NAME, TAG, HalfOutcome, HalfTransaction, TransactionId
from minimq_broker.log.clock import now_ms
from minimq_broker.log.entry import held_batch
from minimq_broker.state.state import State
from minimq_common.errors import CorruptEntry, InvalidArgument, StoreError, TransactionExpired
from minimq_common.names import check_producer_group, half_name
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.caller import current_caller
from minimq_common.serving.periodic import PeriodicTask, slices
from minimq_proto.v1 import staged_pb2

log = logging.getLogger(__name__)

#: Maximum bytes of one batch in a list, and of all of them. The list omits other batches.
_LISTED_BATCH_BYTES = 64 << 10
_LISTED_BYTES = 8 << 20
#: Transactions whose rights are checked per slice.
_SHOWN_AT_ONCE = 100
#: Maximum pause between two rounds of checks.
_ROUND_S = 1.0
#: Maximum checks, and expired transactions, per round.
_MAX = 1_000
#: The broker sends no check to a member with more unread bytes.
_MAX_UNREAD_BYTES = 1 << 20
#: Seconds after which an undecided transaction expires: a team has a week to decide by hand.
HALF_MESSAGE_EXPIRY_S = 7 * 86_400.0
#: Time from one question to the next, in units of `--check-back-after`: 30 s by default.
_PAUSES = 5
#: Interval of warnings about undecided transactions, and how many of these the log names.
_WARN_S = 600.0
_MAX_NAME = 5
_WANTED = {
    staged_pb2.HALF_OUTCOME_COMMITTED: HalfOutcome.COMMITTED,
    staged_pb2.HALF_OUTCOME_ROLLED_BACK: HalfOutcome.ROLLED_BACK,
}


@dataclass(slots=True)
class _CheckBacks:
    """The checks of one transaction. Times are of the monotonic clock."""

    count: int = 0
    last_at: float = 0.0
    #: Since when its producer has been disconnected; 0 while it is connected.
    offline_since: float = 0.0


class HalfMessageService(PeriodicTask):
    """The calls about half messages. At a master it also asks producers, or their groups, about open transactions."""

    def __init__(
        self,
        engine: Engine,
        options: StagedFlags,
        clients: Callable[[], Iterable[EventClient]],
        publish_rest: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._options = options
        self._clients = clients
        self._publish_rest = publish_rest
        #: Counts since the start of the broker.
        self.ended: Counter[HalfOutcome | None] = Counter()
        #: Open transactions after their last check: no producer is asked again.
        self.undecided = 0
        self._asked: dict[TransactionId, _CheckBacks] = {}
        self._turn = 0
        self._warn_at = 0.0
        super().__init__("half messages", self._look, min(_ROUND_S, options.check_back_after_s / 4), log)

    # ---- ends -------------------------------------------------------------------------------------

    async def end(self, request: staged_pb2.EndHalfRequest) -> staged_pb2.EndHalfResponse:
        """End a transaction, and return the outcome that is on disk. Raises `NotMaster`, `TransactionExpired`."""
        transaction = TransactionId(half_name(check_producer_group(request.producer_group)), request.number)
        wanted = _WANTED.get(request.outcome)
        if wanted is None:
            raise InvalidArgument(f"outcome {request.outcome} ends no transaction: commit it, or roll it back")
        job = await self._engine.writes.written(EndJob(*transaction, wanted, request.batches))
        self._ended(job)
        if job.stands is None:
            raise TransactionExpired(
                f"the broker knows no {transaction}: it ended so long ago that its outcome is forgotten, or the number "
                "is of another broker, or wrong"
            )
        return staged_pb2.EndHalfResponse(outcome=staged_pb2.HalfOutcome.ValueType(job.stands))

    def _ended(self, job: EndJob) -> None:
        if job.is_new:
            self.ended[job.stands] += 1
        if job.has_more:
            self._publish_rest()

    # ---- open transactions ------------------------------------------------------------------------

    async def list_open(self, request: staged_pb2.ListHalvesRequest) -> staged_pb2.ListHalvesResponse:
        """Return open transactions. Raises `InvalidArgument` and `NotMaster`."""
        self._engine.writes.check()
        group, number = request.producer_group, request.number
        if number >= 0:
            check_producer_group(group)
        caller = current_caller()
        name = half_name(group)
        found = [
            (transaction, half)
            for transaction, half in _halves(self._engine.store.state).open().items()
            if (not group or transaction.name == name)
            and number in (-1, transaction.number)
            and (group or caller.sees(Resource.TRANSACTION, transaction.name[1:]))
        ]
        found.sort(key=lambda item: item[1].stage.began_ms)
        response = staged_pb2.ListHalvesResponse(count=len(found))
        async for part in slices(await asyncio.to_thread(self._described, found[: request.most]), _SHOWN_AT_ONCE):
            response.halves.extend(_as_seen(half, topic) for half, topic in part)
        if number >= 0 and not found:
            # Asks the writer, to include an end that is being written.
            outcomes: list[HalfOutcome | None] = []
            transaction = TransactionId(name, number)
            await self._engine.writes.record(lambda state: outcomes.append(_halves(state).outcome(transaction)))
            if outcomes[0] is not None:
                response.outcome = staged_pb2.HalfOutcome.ValueType(outcomes[0])
        return response

    def _described(
        self, found: Sequence[tuple[TransactionId, HalfTransaction]]
    ) -> list[tuple[staged_pb2.OpenHalf, str]]:
        # Each with the topic of its first batch.
        now, left = now_ms(), _LISTED_BYTES
        described_ones = []
        store = self._engine.store
        with store.reading():
            for transaction, half in found:
                batches = half.stage.in_order
                names = dict.fromkeys(store.state.topic_name(batch.topic_id) or "" for batch in batches)
                asked = self._asked.get(transaction, _CheckBacks())
                about = staged_pb2.OpenHalf(
                    producer_group=transaction.name[1:],
                    number=transaction.number,
                    topics=filter(None, names),
                    batches=len(batches),
                    age_ms=max(0, now - half.stage.began_ms),
                    checks=asked.count,
                    is_undecided=self._is_undecided(asked),
                )
                about.expires_ms = max(0, int(HALF_MESSAGE_EXPIRY_S * 1000) - about.age_ms)
                if batches and batches[0].size <= min(_LISTED_BATCH_BYTES, left):
                    about.batch = _question(store, transaction, half).batch
                    left -= batches[0].size
                described_ones.append((about, next(iter(names), "")))
        return described_ones

    # ---- checks -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        store = self._engine.store
        halves = _halves(store.state).open() if store.writer.leads else {}
        now, members = time.monotonic(), self._members()
        self._asked = {transaction: self._asked.get(transaction) or _CheckBacks() for transaction in halves}
        for transaction, asked in self._asked.items():
            producer_id = halves[transaction].producer_id
            is_there = any(producer_id in member.producer_ids for member in members.get(transaction.name, ()))
            asked.offline_since = 0.0 if is_there else asked.offline_since or now
        await self._expire(halves)
        if due := self._due(halves, members, now):
            self._ask(due, await asyncio.to_thread(self._questions, halves, [*due]), now)
        undecided = [transaction for transaction, asked in self._asked.items() if self._is_undecided(asked)]
        self.undecided = len(undecided)
        self._warn(undecided)

    def _members(self) -> Mapping[str, Sequence[EventClient]]:
        # Of each producer group, by the name under which its half messages are staged.
        members: defaultdict[str, list[EventClient]] = defaultdict(list)
        for client in self._clients():
            for group in client.producer_groups:
                members[half_name(group)].append(client)
        return members

    def _is_undecided(self, asked: _CheckBacks) -> bool:
        return asked.count >= self._options.max_check_backs

    def _due(
        self, halves: Mapping[TransactionId, HalfTransaction], members: Mapping[str, Sequence[EventClient]], now: float
    ) -> dict[TransactionId, EventClient]:
        after_s = self._options.check_back_after_s
        began_before_ms = now_ms() - after_s * 1000
        found: dict[TransactionId, EventClient] = {}
        for transaction, half in halves.items():
            asked = self._asked[transaction]
            if half.stage.began_ms > began_before_ms or self._is_undecided(asked):
                continue
            # After a fail-over, other members may reconnect before the producer, whose transaction may still run.
            if now < max(asked.last_at + _PAUSES * after_s, asked.offline_since + after_s):
                continue
            member = self._member(members.get(transaction.name, ()), half.producer_id)
            if member is not None:
                found[transaction] = member
                if len(found) == _MAX:
                    break
        return found

    def _member(self, members: Sequence[EventClient], producer_id: int) -> EventClient | None:
        members = [member for member in members if producer_id in member.producer_ids] or members
        self._turn += 1
        for at in range(len(members)):
            member = members[(self._turn + at) % len(members)]
            if member.unread_bytes < _MAX_UNREAD_BYTES:
                return member
        return None

    def _questions(
        self, halves: Mapping[TransactionId, HalfTransaction], due: Sequence[TransactionId]
    ) -> list[staged_pb2.CheckHalf]:
        store = self._engine.store
        with store.reading():
            return [_question(store, transaction, halves[transaction]) for transaction in due]

    def _ask(
        self, due: Mapping[TransactionId, EventClient], questions: Sequence[staged_pb2.CheckHalf], now: float
    ) -> None:
        for (transaction, member), check in zip(due.items(), questions, strict=True):
            asked = self._asked[transaction]
            asked.last_at = now
            asked.count += 1  # also if the batch is unreadable: after `max_check_backs`, an operator must decide
            if check.batch:
                check.checks = asked.count
                member.add(staged_pb2.ClientEvent(check=check))
                log.debug("half messages: asked client=%s about=%s", member.client_id, transaction)

    async def _expire(self, halves: Mapping[TransactionId, HalfTransaction]) -> None:
        before_ms = self._engine.clock.now_ms() - HALF_MESSAGE_EXPIRY_S * 1000
        old = [transaction for transaction, half in halves.items() if half.stage.began_ms < before_ms][:_MAX]
        jobs = [EndJob(*transaction, HalfOutcome.EXPIRED) for transaction in old]
        for job in await asyncio.gather(*map(self._engine.writes.written, jobs)):
            self._ended(job)
        if expired := [transaction for transaction, job in zip(old, jobs, strict=True) if job.is_new]:
            log.warning(
                "half messages: expired, not decided in time seconds=%g count=%d first=%s",
                HALF_MESSAGE_EXPIRY_S,
                len(expired),
                ", ".join(map(str, expired[:_MAX_NAME])),
            )

    def _warn(self, undecided: Sequence[TransactionId]) -> None:
        now = time.monotonic()
        if undecided and now >= self._warn_at:
            self._warn_at = now + _WARN_S
            log.warning(
                "half messages: undecided after checks=%d, their files are kept: minimq transaction list count=%d "
                "first=%s",
                self._options.max_check_backs,
                len(undecided),
                ", ".join(map(str, undecided[:_MAX_NAME])),
            )


def _halves(state: State) -> HalfMessages:
    halves: HalfMessages = state.tables[NAME].halves
    return halves


def _as_seen(half: staged_pb2.OpenHalf, topic: str) -> staged_pb2.OpenHalf:
    """Remove what the caller may not see: names of topics, and the batch, which is one of this topic."""
    caller = current_caller()
    if caller.allows(Need(Verb.WRITE, Resource.TRANSACTION, half.producer_group)):  # its checks tell all of it
        return half
    seen = [name for name in half.topics if caller.sees(Resource.TOPIC, name)]
    del half.topics[:]
    half.topics.extend(seen)
    if not caller.allows(Need(Verb.READ, Resource.TOPIC, topic)):
        half.ClearField("batch")
    return half


def _question(store: Store, transaction: TransactionId, half: HalfTransaction) -> staged_pb2.CheckHalf:
    # Without a batch if the first one is damaged.
    check = staged_pb2.CheckHalf(producer_group=transaction.name[1:], number=transaction.number)
    first = half.stage.in_order[0]
    try:
        entry = store.log.entry_at(first.position)
        check.batch = bytes(held_batch(entry, TAG, held_key(entry, transaction.name, first))[0])
    except (CorruptEntry, StoreError) as error:
        log.warning("half messages: cannot read the first batch of=%s error=%s", transaction, error.message)
    check.topic = store.state.topic_name(first.topic_id) or ""
    return check
