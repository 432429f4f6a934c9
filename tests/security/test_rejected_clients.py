"""Clients with credentials that do not fit, or without: each way of use says at once what is wrong, and what helps."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import minimq.aio
from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PullConsumer, PushConsumer, WorkQueueConsumer
from minimq.errors import MinimqError, NotAuthenticated
from minimq.local.certificate_authority import CertificateAuthority, issue_key
from minimq_broker.backup.copying import take_snapshot
from minimq_cli.main import main
from minimq_common.security.channel_security import open_credentials
from minimq_common.security.credentials_file import written
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from support.command import Minimq
from support.loop_thread import LoopThread
from support.secure_scraping import trust_of
from support.users import Users
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.system


class Client(NamedTuple):
    """The name server and the credentials of a client."""

    nameserver: str
    credentials: Path | str


def send(client: Client) -> object:
    with Producer(client.nameserver, credentials=client.credentials, send_timeout_s=TIMEOUT_S) as producer:
        return producer.send(Message("orders", b"x"))


def send_on_a_loop(client: Client) -> object:
    async def run() -> object:
        async with minimq.aio.Producer(client.nameserver, credentials=client.credentials) as producer:
            return await producer.send(Message("orders", b"x"))

    return asyncio.run(run())


def poll(client: Client) -> object:
    with PullConsumer(client.nameserver, group="g-rejected", credentials=client.credentials) as consumer:
        consumer.subscribe("orders")
        return consumer.poll(TIMEOUT_S / 2)


def listen(client: Client) -> object:
    with PushConsumer(client.nameserver, group="g-rejected", credentials=client.credentials) as consumer:
        consumer.subscribe("orders")
        consumer.start(lambda _: ConsumeResult.SUCCESS)
    return None


def receive(client: Client) -> object:
    with WorkQueueConsumer(client.nameserver, group="g-rejected", credentials=client.credentials) as consumer:
        consumer.subscribe("orders")
        return consumer.receive()


def administer(client: Client) -> object:
    with Admin(client.nameserver, credentials=client.credentials) as admin:
        return admin.list_topics()


def command(*arguments: str) -> Callable[[Client], object]:
    def run(client: Client) -> object:
        given = {"MINIMQ_NAMESERVER": client.nameserver, "MINIMQ_CREDENTIALS": str(client.credentials)}
        done = CliRunner(env=given).invoke(main, arguments, input="x\n")
        assert done.exit_code in {1, 2}, done.output
        [line, *_] = done.stderr.splitlines()
        raise MinimqError(line.removeprefix("error: "))

    return run


def produce(client: Client) -> object:
    """Run the command as a process, since it reads a file or a pipe."""
    given = {"MINIMQ_CREDENTIALS": str(client.credentials)}
    with Minimq(client.nameserver).running("produce", "orders", stdin=subprocess.PIPE, **given) as producing:
        _, said = producing.communicate(b"x\n", timeout=TIMEOUT_S)
    [line, *_] = said.decode().splitlines()
    raise MinimqError(line.removeprefix("error: "))


USES = {
    "producer": send,
    "producer on a loop": send_on_a_loop,
    "pull consumer": poll,
    "push consumer": listen,
    "work queue consumer": receive,
    "admin": administer,
    "topic list": command("topic", "list"),
    "produce": produce,
    "consume": command("consume", "orders", "--group", "g-rejected", "--exit-at-end"),
    "peek": command("peek", "orders"),
}

#: What is wrong with a client, and what it is told.
CASES = {
    "no credentials": "it uses TLS, and this client has no credentials: give the credentials of a user (credentials=,",
    "no TLS there": "it speaks no TLS: leave the credentials out, or start it with --secrets DIR",
    "no key": "there is no key in this call, and this cluster requires one: give the credentials of a user",
    "another key": "the key in these credentials is not known here, or no longer: give the credentials of a user",
    "no certificate": "it requires a certificate, and these credentials have none: `minimq secure issue DIR USER`",
    "another cluster": "its certificate is not signed by a CA that is trusted here: these are not the credentials of",
    "a broker": "does not know this call: a server of another kind has this address",
}


@pytest.fixture(scope="module")
def clients(
    secure: LocalCluster, stranger: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Client]]:
    """A client of each kind."""
    trust, folder = trust_of(secure.credentials), tmp_path_factory.mktemp("clients")
    with ExitStack() as stack:
        loop = LoopThread()
        stack.callback(loop.close)
        plain = stack.enter_context(loop.serving(NameServer(NameServerOptions(listen="127.0.0.1:0"))))

        def client(nameserver: str, **changes: Any) -> Client:
            file = folder / f"{len([*folder.iterdir()])}.minimq"
            file.write_text(written([nameserver], replace(trust, **changes), "Of a test."))
            return Client(nameserver, file)

        yield {
            "no credentials": Client(secure.nameserver, ""),
            "no TLS there": client(plain.address),
            "no key": client(secure.nameserver, bearer=None),
            "another key": client(secure.nameserver, bearer=issue_key()[0]),
            "no certificate": client(secure.nameserver, pair=None),
            "another cluster": Client(secure.nameserver, stranger.admin),
            "a broker": client(secure.brokers[0].address),
        }


#: What is wrong is found in one place, and told by each use as other errors are.
TOLD = [
    (case, use)
    for case in CASES
    for use in USES
    if use in {"producer", "admin"} or case in {"no TLS there", "no key", "another cluster"}
]


@pytest.mark.parametrize(("case", "use"), TOLD)
def test_a_client_is_told_at_once_what_is_wrong(case: str, use: str, clients: dict[str, Client]) -> None:
    with pytest.raises(MinimqError) as raised:
        USES[use](clients[case])
    assert CASES[case] in raised.value.message
    assert "waited" not in raised.value.message
    assert len(raised.value.message.splitlines()) == 1


def test_a_name_server_is_no_broker_to_copy(secure: LocalCluster, tmp_path: Path) -> None:
    security = open_credentials(secure.credentials)
    assert security is not None
    copying = take_snapshot(secure.nameserver, tmp_path / "copy", 1 << 20, lambda _start, _end: print, security)
    with pytest.raises(MinimqError, match=f"^broker {secure.nameserver} (does not know this call|ended the call)"):
        asyncio.run(copying)


# ---- A key that is revoked while it is used -----------------------------------------------------


@pytest.fixture
def revoked(secure: LocalCluster, tmp_path: Path) -> tuple[Path, Callable[[], object]]:
    """The credentials of a user who may read, and what removes the user."""
    rules = ["allow read topic orders", "allow read group g-revoked"]
    users, file = Users(secure), tmp_path / "revoked.minimq"
    file.write_text(users.add("revoked", rules))
    return file, lambda: users.remove("revoked")


def test_each_poll_says_that_the_key_was_revoked(revoked: tuple[Path, Callable[[], object]]) -> None:
    file, revoke = revoked
    with ExitStack() as opened:
        consumer = PullConsumer(group="g-revoked", credentials=file, auto_commit=False)
        opened.callback(consumer.close)
        consumer.subscribe("orders")
        wait_until(lambda: len(consumer.poll(0.1)) >= 0 and consumer.is_ready, TIMEOUT_S, what="it is in the group")
        revoke()

        def is_rejected() -> bool:
            try:
                consumer.poll(0.1)
            except NotAuthenticated as error:
                return "the key in these credentials is not known here, or no longer" in error.message
            return False

        wait_until(lambda: all(is_rejected() for _ in range(5)), TIMEOUT_S, what="each poll is rejected")
