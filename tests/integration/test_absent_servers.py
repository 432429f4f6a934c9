"""Clients that start before the servers do."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import minimq.aio
from minimq import Admin, Message, Producer, PullConsumer, PushConsumer
from minimq.local.server_process import free_port
from minimq_broker.assembly import BrokerOptions
from minimq_broker.backup.check import check_directory
from minimq_broker.broker import Broker
from minimq_common.errors import Closed, MinimqError, TopicUnavailable, Unavailable
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from support.command import Minimq
from support.listening import Listener
from support.loop_thread import LoopThread
from support.waiting import wait_until

NOBODY = "127.0.0.1:1"
#: No test comes near it.
LONG_S = 120.0


class Servers:
    """A name server and brokers that a test starts when it likes."""

    def __init__(self, folder: Path) -> None:
        self.nameserver = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._loop = LoopThread()
        self._running = ExitStack()

    def prepare(self, topic: str) -> None:
        """Have broker-a carry a topic when it is started."""
        with self._loop.serving(self._nameserver()):
            broker = self.start_broker()
            self.create(topic)
            self.stop(broker)

    def _nameserver(self) -> NameServer:
        return NameServer(NameServerOptions(listen=self.nameserver, start_grace_s=0))

    def start_nameserver(self) -> None:
        self._running.enter_context(self._loop.serving(self._nameserver()))

    def start_broker(self, name: str = "broker-a") -> Broker:
        broker = Broker(
            BrokerOptions(listen="127.0.0.1:0", name=name, data_dir=self._folder / name, nameservers=(self.nameserver,))
        )
        self._loop.run(broker.start())
        self._running.callback(self.stop, broker)
        return broker

    def stop(self, broker: Broker) -> None:
        self._loop.run(broker.stop())

    def start(self) -> None:
        self.start_nameserver()
        self.start_broker()

    def create(self, topic: str, broker: str = "broker-a") -> None:
        with Admin(self.nameserver) as admin:
            wait_until(lambda: broker in [each.broker_name for each in admin.cluster()])
            admin.create_topic(topic, queues=1, brokers=[broker])

    def close(self) -> None:
        self._running.close()
        self._loop.close()
        for directory in self._folder.iterdir():
            assert check_directory(directory).findings == []


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.close()


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


async def _send(nameserver: str) -> object:
    async with minimq.aio.Producer(nameserver, send_timeout_s=LONG_S) as producer:
        return await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize("way", ["send", "send_async", "send_one_way", "send_many", "aio"])
def test_a_send_waits_for_the_name_server_and_for_the_broker(
    way: str, servers: Servers, beside: ThreadPoolExecutor
) -> None:
    servers.prepare("orders")
    with Producer(servers.nameserver, send_timeout_s=LONG_S) as producer:
        message = Message("orders", b"x")
        sends: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send(message),
            "send_async": lambda: producer.send_async(message).result(),
            "send_one_way": lambda: producer.send_one_way(message),
            "send_many": lambda: producer.send_many([message]),
            "aio": lambda: asyncio.run(_send(servers.nameserver)),
        }
        sent: Future[object] = beside.submit(sends[way])
        servers.start()
        sent.result(30)
        producer.flush(30)
    with Admin(servers.nameserver) as admin:
        assert admin.describe_topic("orders").messages == 1


def _failure(call: Callable[[], object], reason: str) -> MinimqError:
    """Repeat a call that waits 3 s and fails, until it names a reason: a busy name server may not answer at first."""
    failures: list[MinimqError] = []

    def is_named() -> bool:
        with pytest.raises(MinimqError, match=r"\(waited 3 s\)") as caught:
            call()
        failures.append(caught.value)
        return reason in caught.value.message

    wait_until(is_named, what=reason)
    return failures[-1]


def test_the_error_names_what_was_waited_for(servers: Servers) -> None:
    with (
        Producer(NOBODY, send_timeout_s=0.3) as producer,
        pytest.raises(Unavailable, match=rf"no name server listening at {NOBODY}: .* \(waited 0.3 s\)"),
    ):
        producer.send(Message("orders", b"x"))
    servers.start_nameserver()
    with Producer(servers.nameserver, send_timeout_s=3.0) as producer:
        _failure(lambda: producer.send_many([Message("orders", b"x")]), "no broker is registered with ")
    broker = servers.start_broker()
    servers.create("orders")
    servers.stop(broker)
    servers.start_broker("broker-b")
    with Producer(servers.nameserver, send_timeout_s=3.0) as producer:
        sent = _failure(lambda: producer.send(Message("orders", b"x")), "broker-a is offline since ")
    with PullConsumer(servers.nameserver, group="billing", start_timeout_s=3.0) as consumer:
        consumer.subscribe("orders")
        polled = _failure(lambda: consumer.poll(30.0), "broker-a is offline since ")
    for error in (sent, polled):
        assert isinstance(error, TopicUnavailable)
        assert [offline.broker_name for offline in error.offline] == ["broker-a"]


def test_a_push_consumer_begins_when_the_servers_come(servers: Servers, beside: ThreadPoolExecutor) -> None:
    servers.prepare("orders")
    listener = Listener()
    with PushConsumer(servers.nameserver, group="billing") as consumer:
        consumer.subscribe("orders")
        started = beside.submit(consumer.start, listener)
        servers.start()
        started.result(30)
        with Producer(servers.nameserver) as producer:
            producer.send(Message("orders", b"x"))
        wait_until(lambda: listener.times_of(b"x"), 60)


def test_polls_return_nothing_in_their_time_until_the_servers_come(servers: Servers) -> None:
    servers.prepare("orders")
    with PullConsumer(servers.nameserver, group="billing", start_timeout_s=LONG_S) as consumer:
        consumer.subscribe("orders")
        began = time.monotonic()
        assert consumer.poll(0.2) == []
        assert 0.2 <= time.monotonic() - began < LONG_S / 2
        servers.start()
        with Producer(servers.nameserver) as producer:
            producer.send(Message("orders", b"x"))
        assert [message.body for message in wait_until(lambda: consumer.poll(1.0), 60)] == [b"x"]


@pytest.mark.parametrize(
    "arguments",
    [("produce", "orders", "--send-timeout", "60"), ("consume", "orders", "--group", "billing", "--limit", "1")],
    ids=["produce", "consume"],
)
def test_a_command_waits_for_the_servers(arguments: tuple[str, ...], servers: Servers) -> None:
    servers.prepare("orders")
    host, _, port = servers.nameserver.rpartition(":")
    with Minimq(servers.nameserver).running(*arguments, stdin=subprocess.PIPE) as command:
        with socket.create_server((host, int(port))) as nobody:
            nobody.settimeout(30)
            nobody.accept()[0].close()  # it has asked, and nobody has answered
        servers.start()
        if arguments[0] == "consume":
            with Producer(servers.nameserver, send_timeout_s=LONG_S) as producer:
                producer.send(Message("orders", b"x"))
        output, said = command.communicate(b"x\n", timeout=40)
    assert command.returncode == 0, said
    assert output == b"x\n" if arguments[0] == "consume" else output.startswith(b"sent 1 message")


def test_commands_wait_as_long_as_they_are_told() -> None:
    minimq = Minimq(NOBODY)
    said = minimq("produce", "orders", "--send-timeout", "0.3", stdin=b"x\n", status=1)
    assert re.match(r"error: no name server .* \(waited 0.3 s, as --send-timeout says\); no line is known .*\n", said)
    said = minimq("consume", "orders", "--group", "billing", "--start-timeout", "0.3", status=1)
    # A busy machine has no time left to say before it that the command waits.
    assert re.search(r"^error: no name server .* \(waited 0.3 s, as --start-timeout says\)\n\Z", said, re.MULTILINE)
    with minimq.running("consume", "orders", "--group", "billing") as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == b"waiting up to 60 s for servers that are not reachable\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(20) == 0


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_close_ends_the_waiting(kind: str, beside: ThreadPoolExecutor) -> None:
    begun = threading.Event()

    def start() -> None:
        begun.set()
        if isinstance(consumer, PushConsumer):
            consumer.start(Listener())
        else:
            consumer.poll(LONG_S)

    consumer = {"push": PushConsumer, "pull": PullConsumer}[kind](NOBODY, group="billing", start_timeout_s=LONG_S)
    consumer.subscribe("orders")
    waiting = beside.submit(start)
    assert begun.wait(10)
    consumer.close()
    with pytest.raises(Closed):
        waiting.result(10)
