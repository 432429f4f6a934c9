"""The producer for asyncio, with real servers: it never blocks its loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster, Message, MessageQueue, MinimqError, SendInterceptor, SendReceipt
from minimq.aio import Producer
from minimq_common.errors import Closed, SendFailed
from support.reading import read_all
from support.waiting import wait_until

TIMEOUT_S = 30.0


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalCluster]:
    """One broker, with a topic of two queues."""
    with LocalCluster(brokers=1, data_dir=tmp_path) as made:
        with Admin(made.nameserver) as admin:
            admin.create_topic("t", queues=2)
        yield made


def test_one_loop_after_the_other_may_use_a_producer(cluster: LocalCluster, topic: str) -> None:
    producer = Producer(cluster.nameserver)
    for number in range(3):
        assert asyncio.run(producer.send(Message(topic, b"%d" % number))).queue.topic == topic
    asyncio.run(producer.close())


@pytest.mark.fault
def test_a_full_buffer_lets_the_loop_go_on(single: LocalCluster) -> None:
    [broker] = single.brokers

    async def run() -> None:
        async with Producer(single.nameserver, buffer_bytes=10_000, send_timeout_s=TIMEOUT_S) as producer:
            await producer.send(Message("t", b"0"))
            broker.pause()
            asyncio.get_running_loop().call_later(0.5, broker.resume)  # which a blocked loop would never do
            await asyncio.gather(*(producer.send(Message("t", bytes(1_000))) for _ in range(50)))

    asyncio.run(run())
    assert len(list(read_all(single.nameserver, "t"))) == 51


@pytest.mark.fault
def test_an_unknown_route_is_asked_for_beside_the_loop(single: LocalCluster) -> None:
    nameserver = single.nameservers[0]
    nameserver.pause()

    async def run() -> None:
        async with Producer(single.nameserver) as producer:
            asyncio.get_running_loop().call_later(0.5, nameserver.resume)
            await producer.send(Message("t", b"x"))

    asyncio.run(run())


@pytest.mark.fault
def test_a_send_that_nobody_waits_for_any_more_does_no_harm(single: LocalCluster) -> None:
    [broker] = single.brokers

    async def run() -> None:
        async with Producer(single.nameserver, send_timeout_s=TIMEOUT_S) as producer:
            await producer.send(Message("t", b"0"))
            broker.pause()
            waiting = asyncio.create_task(producer.send(Message("t", b"1")))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            broker.resume()
            await producer.flush(TIMEOUT_S)
            assert (await producer.send(Message("t", b"2"))).queue.topic == "t"

    asyncio.run(run())
    bodies = {message.body for message in read_all(single.nameserver, "t")}
    assert bodies == {b"0", b"1", b"2"}


@pytest.mark.fault
def test_cancelled_sends_that_waited_for_room_are_not_sent_and_the_others_keep_their_order(
    single: LocalCluster,
) -> None:
    [broker] = single.brokers
    seen: list[tuple[str, bytes]] = []

    class Watcher(SendInterceptor):
        def before_send(self, message: Message) -> Message:
            seen.append(("before", message.body[:1]))
            return message

        def after_send(self, message: Message, receipt: SendReceipt | None, error: MinimqError | None) -> None:
            seen.append(("stored" if receipt is not None else "failed", message.body[:1]))

    async def run() -> None:
        queue = MessageQueue("t", "broker-a", 0)
        async with Producer(
            single.nameserver, buffer_bytes=4_000, send_timeout_s=TIMEOUT_S, interceptors=[Watcher()]
        ) as producer:
            await producer.send(Message("t", b"first"), queue=queue)
            broker.pause()
            sends = [
                asyncio.create_task(producer.send(Message("t", b"%d" % number + bytes(1_000)), queue=queue))
                for number in range(6)
            ]
            await asyncio.sleep(0)  # in which all of them begin
            assert producer._behind == 4
            names = {thread.name for thread in set(threading.enumerate()) - before}
            assert names == {"minimq-cluster", "minimq-producer-callbacks"}, "a thread waits"
            cancelled = sends[2], sends[4]  # the one that waits for room, and one of those behind it
            for send in cancelled:
                send.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await send
            sends[0].cancel()  # which was handed in
            broker.resume()
            await asyncio.gather(sends[1], sends[3], sends[5])
            await producer.flush(TIMEOUT_S)
            assert producer.statistics().buffered_messages == 0

    before = set(threading.enumerate())
    asyncio.run(run())
    stored = [message.body[:1] for message in read_all(single.nameserver, "t")]
    assert stored == [b"f", b"0", b"1", b"3", b"5"]
    assert sorted(body for what, body in seen if what == "before") == [b"0", b"1", b"2", b"3", b"5", b"f"]
    assert [body for what, body in seen if what == "stored"] == stored
    assert [body for what, body in seen if what == "failed"] == [b"2"]


def test_a_cancelled_send_many_reads_no_further_messages(cluster: LocalCluster, topic: str) -> None:
    dropped = threading.Event()

    def endless() -> Iterator[Message]:
        try:
            while True:
                yield Message(topic, b"x")
        finally:
            dropped.set()

    async def run() -> None:
        async with Producer(cluster.nameserver, send_timeout_s=TIMEOUT_S) as producer:
            await producer.send(Message(topic, b"x"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await producer.send_many(endless())
            assert await asyncio.to_thread(dropped.wait, TIMEOUT_S)

    asyncio.run(run())


def test_a_large_message_whose_send_is_cancelled_is_not_overtaken(cluster: LocalCluster, topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 1)

    async def run() -> None:
        async with Producer(cluster.nameserver) as producer:
            await producer.send(Message(topic, b"0"), queue=queue)
            large = asyncio.create_task(producer.send(Message(topic, b"1" * 1_000_000), queue=queue))
            await asyncio.sleep(0)
            large.cancel()
            await producer.send(Message(topic, b"2"), queue=queue)
            with pytest.raises(asyncio.CancelledError):
                await large

    asyncio.run(run())
    assert [message.body[:1] for message in read_all(cluster.nameserver, topic)] == [b"0", b"1", b"2"]


@pytest.mark.fault
def test_closing_tells_what_was_not_sent(single: LocalCluster) -> None:
    [broker] = single.brokers
    before = threading.active_count()

    async def run() -> None:
        producer = Producer(single.nameserver, send_timeout_s=TIMEOUT_S)
        await producer.send(Message("t", b"0"))
        broker.pause()
        futures = [await producer.send_async(Message("t", b"x")) for _ in range(3)]
        with pytest.raises(SendFailed, match=r"3 messages were not acknowledged within 0\.2 s"):
            await producer.close(0.2)
        for future in futures:
            with pytest.raises(Closed):
                await future

    asyncio.run(run())
    broker.resume()
    wait_until(lambda: threading.active_count() <= before, what="its threads end")


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_the_end_of_a_with_block_that_ctrl_c_has_left_waits_only_briefly(
    cluster: LocalCluster, error: type[BaseException]
) -> None:
    waited: list[float | None] = []

    class Watched(Producer):
        async def close(self, timeout: float = 30.0) -> None:
            waited.append(timeout)
            await super().close(timeout)

    async def run() -> None:
        async with Watched(cluster.nameserver):
            raise error

    with pytest.raises(error):
        asyncio.run(run())
    assert waited == [2.0]
