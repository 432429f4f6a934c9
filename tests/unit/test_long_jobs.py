"""Jobs that last far longer than their invisible duration, in virtual time.

The client is real from its listener to the request that keeps messages, and so are the decisions of the broker: the
queue, its facts and its clock. Between them is a link that is slow and loses requests and answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from minimq import ConsumeResult, MessageQueue
from minimq.consuming.interceptor import ReceiveInterceptors
from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq.features.listeners import listener_calls, work_queue_source
from minimq.features.listeners import listener_runner as running
from minimq.features.listeners.listener import ListenerAdapter, ListenerCalls
from minimq.features.listeners.listener_options import PushConsumerOptions
from minimq.features.listeners.listener_runner import ListenerRunner
from minimq.features.listeners.work_queue_source import WorkQueueSource
from minimq.features.work_queues.settler import Settlement
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_broker.features.work_queues.clock import PopClock
from minimq_broker.features.work_queues.pop_runs import PopKey, Take
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep, UncommittedPops
from minimq_broker.features.work_queues.work_queue_clients import settle_step
from minimq_broker.log import clock as pop_clock
from minimq_broker.state.facts import Topic, TopicSet, decode_fact, encode_fact
from minimq_broker.state.state import QueueEnd, QueueKey, State
from minimq_common.errors import HandleExpired, Unavailable
from minimq_proto.v1 import broker_pb2
from support.chance import SEED
from support.kernel_stores import make_batch
from support.virtual_loop import VirtualLoop

T = TypeVar("T")

KEY = PopKey("g", 17, 0)
BATCH = ReceivedBatch(MessageQueue("jobs", "broker-a", 0), EncodedRecords(0, 0, 0, 1, make_batch([b"job"])))
INVISIBLE_S, JOB_S = 30.0, 2 * 3600.0
#: This share of requests is lost, and so is that of answers; after so many seconds a client gives up.
LOST, UNANSWERED_S = 0.05, 5.0
#: Most seconds for which a request or an answer is under way, and between two takes of who has nothing.
LATENCY_S, POLL_S = 1.0, 1.0


class Clocks:
    """The clocks of a machine: one that goes on with a loop, and the time of day, which may be set."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.ahead_s = 1_700_000_000.0

    def monotonic(self) -> float:
        return self._loop.time()

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def time_ns(self) -> int:
        return round((self.ahead_s + self._loop.time()) * 1e9)


class Broker:
    """A queue with one message, and the decisions about it; each is applied as a fact, as in a broker."""

    def __init__(self) -> None:
        self._clock = PopClock()
        self._position = 0
        self.state = State()
        self.state.apply(TopicSet(Topic("jobs", KEY.topic_id, 1, 1)), 0, 0)
        self.state.ends[QueueKey(KEY.topic_id, KEY.queue_id)] = QueueEnd(1)
        #: How often the message was handed out, and how often it was kept for longer.
        self.handed_out = self.kept = 0
        self.is_done = asyncio.Event()

    def take(self, client: str) -> list[WorkQueueMessage]:
        step = PopStep(1, KEY, Take(client, 1, self._clock.after_ms(round(INVISIBLE_S * 1000))), (0, 1))
        epoch = self._decide(step)
        self.handed_out += len(step.runs)
        return [WorkQueueMessage(BATCH, 0, b"job", None, run.delivery_count, epoch, KEY.group) for run in step.runs]

    def settle(self, message: WorkQueueMessage, outcome: broker_pb2.PopOutcome.ValueType, duration_ms: int) -> None:
        settle = broker_pb2.PopSettle(
            id=1, topic="jobs", epoch=message.epoch, spans=[0, 1], outcome=outcome, duration_ms=duration_ms
        )
        step = settle_step(self.state, KEY.group, settle, self._clock)
        self._decide(step)
        if step.expired:
            raise HandleExpired("somebody else has got it", [])
        self.kept += outcome == broker_pb2.POP_OUTCOME_EXTEND

    def _decide(self, step: PopStep) -> int:
        self._position += 100
        job = PopJob(KEY.group, [step], self._clock.now_ms())
        fact = UncommittedPops(cast("Any", SimpleNamespace(state=self.state, end=self._position))).decide(job)
        if fact is not None:
            self.state.apply(decode_fact(encode_fact(fact)), self._position, 0)
        if self.state.committed.get(KEY) == 1:
            self.is_done.set()
        return job.epoch


class Link:
    """The reader of one consumer: a slow and lossy way to the broker."""

    def __init__(self, broker: Broker, chance: random.Random, name: str) -> None:
        self._broker, self._chance, self.client_id = broker, chance, name
        self.group, self.topics, self.is_closed = KEY.group, ["jobs"], False
        self.settler = self
        connection = SimpleNamespace(call_soon=self._call_soon, at_end=lambda _: None)
        routes = SimpleNamespace(find_within=self._find)
        self.client = SimpleNamespace(result=self._result, connection=connection, routes=routes, cluster=None)

    def check_open(self) -> None:
        """It is."""

    async def begin(self) -> None:
        """The group has begun."""

    @staticmethod
    def rejected_s() -> float:
        return 0.0

    @staticmethod
    def wanted(*_: object) -> None:
        """Each take gets what there is."""

    async def receive_on_loop(self, _: None) -> list[WorkQueueMessage]:
        found = await self._ask(partial(self._broker.take, self.client_id), loses=False)
        if not found:
            await asyncio.sleep(POLL_S)
        return found

    async def settle(self, messages: Sequence[WorkQueueMessage], how: Settlement) -> None:
        for message in messages:
            await self._ask(partial(self._broker.settle, message, how.outcome, how.duration_ms))

    def extended(self, _: float | None) -> Settlement:
        return Settlement(broker_pb2.POP_OUTCOME_EXTEND, int(INVISIBLE_S * 1000))

    async def _ask(self, decide: Callable[[], T], *, loses: bool = True) -> T:
        await self._pass(loses=loses)
        answer = decide()
        await self._pass(loses=loses)
        return answer

    async def _pass(self, *, loses: bool) -> None:
        if loses and self._chance.random() < LOST:
            await asyncio.sleep(UNANSWERED_S)
            raise Unavailable("no answer")
        await asyncio.sleep(self._chance.uniform(0.001, LATENCY_S))

    @staticmethod
    async def _find(topic: str, timeout_s: float) -> None:
        """It is there."""

    @staticmethod
    async def _result(make: Callable[[], Awaitable[T]], *, cancels: bool = False) -> T:
        return await make()

    @staticmethod
    def _call_soon(work: Callable[..., object], *arguments: object) -> None:
        asyncio.get_running_loop().call_soon(work, *arguments)


async def watch(broker: Broker, clocks: Clocks, chance: random.Random, names: Iterable[str]) -> list[tuple[str, int]]:
    """Let consumers do what there is; return who has done it, and in which try, once it is acknowledged."""
    done: list[tuple[str, int]] = []
    calls = ListenerCalls(threads=4, batch_size=1, in_order=False)
    for name in names:
        options = PushConsumerOptions(invisible_s=INVISIBLE_S, consume_timeout_s=2 * JOB_S)
        link = partial(Link, broker, chance, name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(work_queue_source, "WorkQueueReader", lambda *_, made=link, **__: made())
            source = WorkQueueSource(None, "g", client_id=name, start="earliest", calls=calls, options=options)
        runner = ListenerRunner([source], calls.threads, options)
        source.host = runner

        async def work(messages: list[ReceivedMessage], name: str = name) -> ConsumeResult:
            [message] = messages
            for turn in range(20):
                await asyncio.sleep(JOB_S / 20)
                clocks.ahead_s += -JOB_S if turn % 2 else JOB_S  # who sets the clock disturbs nobody
            done.append((name, message.delivery_count))
            return ConsumeResult.SUCCESS

        interceptors = ReceiveInterceptors((), "g", "c")
        adapter = ListenerAdapter(work, "g", runner.replier, interceptors, in_order=False, awaited=True)
        await runner.start_on(asyncio.get_running_loop(), adapter)
    await asyncio.wait_for(broker.is_done.wait(), 2 * JOB_S)
    return done


def test_a_job_of_two_hours_runs_once_though_its_message_is_invisible_for_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, chance = VirtualLoop(), random.Random(SEED)
    clocks = Clocks(loop)
    for module in (running, work_queue_source, listener_calls, pop_clock):
        monkeypatch.setattr(module, "time", clocks)
    for name in ("ProducerCore", "Replier"):
        monkeypatch.setattr(running, name, lambda *_: SimpleNamespace())
    broker = Broker()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        [(_, delivery_count)] = runner.run(watch(broker, clocks, chance, ["first", "second"]))
    assert (delivery_count, broker.handed_out) == (1, 1)
    assert loop.time() >= JOB_S
    # A third of its time passes between two of them, besides the way of a request and its answer.
    assert JOB_S / (INVISIBLE_S / 3 + 2 * LATENCY_S + 1) < broker.kept < JOB_S / (INVISIBLE_S / 3)
