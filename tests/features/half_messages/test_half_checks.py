"""Checks of half messages, and their expiry, with a real engine and store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NoReturn

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.requests.event_service import EventClients
from minimq_broker.features.staged.half_message_service import HALF_MESSAGE_EXPIRY_S, HalfMessageService
from minimq_broker.features.staged.staging import HalfOutcome, TransactionId
from minimq_broker.options import BrokerOptions
from minimq_common.batch import header as batch
from minimq_common.errors import CorruptEntry
from minimq_common.names import half_name
from minimq_proto.v1 import events_pb2
from support.replica_engine import make_topic, with_engine
from support.stores import numbered_batch

OPTIONS = BrokerOptions(check_back_after_s=1.0, max_check_backs=3)
HALF = TransactionId(half_name("shop"), 17)


async def stage(engine: Engine) -> int:
    """Stage a half message; return when that was, in ms since 1970."""
    await make_topic(engine)
    data = numbered_batch(7, 1, b"x")
    answer: asyncio.Queue[AppendJob] = asyncio.Queue()
    await engine.writes.append(AppendJob("t", 0, data, batch.read_header(data), HALF, done=answer.put_nowait))
    assert (await answer.get()).error is None
    return engine.state.transactions.open_half_transactions()[HALF].stage.began_ms


def test_a_half_message_expires_after_its_time_and_by_the_clock_that_deletes(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        checks = HalfMessageService(engine, OPTIONS, EventClients, lambda: None)
        await engine.lead(1, waits_for_replicas=False)
        began_ms = await stage(engine)
        table = engine.state.transactions
        expires_ms = began_ms + int(HALF_MESSAGE_EXPIRY_S * 1000)
        engine.deletion_ms = lambda: expires_ms
        await checks._look()
        assert HALF in table.open_half_transactions()
        engine.deletion_ms = lambda: expires_ms + 1  # the clock of the day is not asked: it may be wrong
        await checks._look()
        assert HALF not in table.open_half_transactions()
        assert table.outcomes.of(HALF) is HalfOutcome.EXPIRED

    with_engine(tmp_path, test)


class Member:
    client_id, producer_ids, unread_bytes = "a", frozenset({7}), 0

    def __init__(self) -> None:
        self.events: list[events_pb2.ClientEvent] = []

    def add(self, event: events_pb2.ClientEvent) -> None:
        self.events.append(event)


class OneMember(EventClients):
    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member: Any = member

    def of_producer_group(self, group: str) -> Sequence[Any]:
        return [self._member]

    @property
    def producers(self) -> Set[tuple[str, int]]:
        return {("shop", 7)}


async def look_until(checks: HalfMessageService, happened: Sequence[object]) -> None:
    while not happened:
        await checks._look()
        await asyncio.sleep(0.01)


def test_a_check_whose_batch_cannot_be_read_is_not_made_but_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def unreadable(position: int) -> NoReturn:
        attempts.append(position)
        raise CorruptEntry(f"the entry at position {position} is damaged")

    async def test(engine: Engine) -> None:
        member, options = Member(), BrokerOptions(check_back_after_s=0.05)
        checks = HalfMessageService(engine, options, lambda: OneMember(member), lambda: None)
        await engine.lead(1, waits_for_replicas=False)
        await stage(engine)
        with monkeypatch.context() as damage:
            damage.setattr(engine.store.log, "entry_at", unreadable)
            await look_until(checks, attempts)
        assert not member.events
        await look_until(checks, member.events)
        assert [event.check.checks for event in member.events] == [len(attempts) + 1]

    with_engine(tmp_path, test)
