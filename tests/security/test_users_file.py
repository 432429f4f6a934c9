"""A server follows changes of its `access.toml`: keys, rights, open streams, and what it logs."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from minimq.errors import MinimqError, NotAuthenticated
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common.errors import InvalidArgument
from minimq_common.security import watched
from minimq_common.security.access_document import AccessDocument, StoredKey, User, to_toml
from minimq_common.security.certificates import Trust
from minimq_common.security.user_key import UserKey, new_key
from minimq_common.wire import rpc
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc
from support.live_user import Stream
from support.loop_thread import LoopThread
from support.waiting import wait_until

TIMEOUT_S = 60.0
KEYS = [new_key(bytes([number]) * 37) for number in range(3)]
READS = ("allow read topic orders",)

pytestmark = pytest.mark.system


class World:
    """A name server, and its folder as Kubernetes mounts it: links into a directory that is swapped as a whole."""

    def __init__(self, folder: Path, loop: LoopThread, opened: ExitStack) -> None:
        self._authority = CertificateAuthority(folder / "secrets")
        self._authority.init([], [])
        self._opened, self._loop = opened, loop
        self._numbers = itertools.count()
        self.folder = folder / "mounted"
        self.folder.mkdir()
        self.swap(to_toml(AccessDocument({"alice": User({KEYS[0].id: StoredKey(KEYS[0].hash)}, rules=READS)})))
        for path in (self.folder / "..data").iterdir():
            (self.folder / path.name).symlink_to(f"..data/{path.name}")
        self._server = self.start()
        self.address = self._server.address

    def start(self) -> NameServer:
        options = NameServerOptions(listen="127.0.0.1:0", secrets=self.folder, start_grace_s=0)
        return self._opened.enter_context(self._loop.serving(NameServer(options)))

    def check_files(self) -> None:
        control = self._server._control
        assert control is not None
        self._loop.call(control.refresh)

    def swap(self, text: str) -> None:
        later = self.folder / f"..{next(self._numbers)}"
        shutil.copytree(self._authority.server, later)
        (later / "access.toml").write_text(text)
        (self.folder / "..new").symlink_to(later.name)
        (self.folder / "..new").rename(self.folder / "..data")

    def set(self, *keys: UserKey, rules: tuple[str, ...] = READS, **others: User) -> None:
        alice = User({key.id: StoredKey(key.hash) for key in keys}, rules=rules)
        self.swap(to_toml(AccessDocument({"alice": alice, **others})))

    def stub(self, key: UserKey) -> Any:
        trust = Trust((self.folder / "ca.crt").read_bytes(), None, key)
        return nameserver_pb2_grpc.NameServerStub(self._opened.enter_context(rpc.open_channel(self.address, trust)))

    def rejection(self, key: UserKey) -> MinimqError | None:
        try:
            self.stub(key).GetRoutes(nameserver_pb2.GetRoutesRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return rpc.from_rpc_error(error, "server")
        return None

    def wait_for(self, key: UserKey, *, is_known: bool) -> None:
        wait_until(lambda: (self.rejection(key) is None) is is_known, TIMEOUT_S, what="the change is in effect")


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    own = LoopThread()
    yield own
    own.close()


@pytest.fixture
def world(
    tmp_path: Path, loop: LoopThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(watched, "_FRESH_S", 0.0)
    with ExitStack() as opened:
        yield World(tmp_path, loop, opened)
    assert not [key.text for key in KEYS if key.text in caplog.text]
    secret = (tmp_path / "secrets" / "server" / "cluster.key").read_text().strip()
    assert secret not in caplog.text


def lines(caplog: pytest.LogCaptureFixture, *texts: str) -> list[str]:
    return [line for line in caplog.messages if any(text in line for text in texts)]


def test_a_key_is_replaced_without_a_restart_and_each_change_is_one_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, unknown = KEYS
    assert isinstance(world.rejection(second), NotAuthenticated)
    world.set(first, second, bob=User(rules=("allow read topic *",)))
    world.wait_for(second, is_known=True)
    assert world.rejection(first) is None
    world.set(second)
    world.wait_for(first, is_known=False)
    assert world.rejection(second) is None
    assert "`minimq user rotate`" in str(world.rejection(unknown))
    assert lines(caplog, "users and rules changed", "access.toml") == [
        "access: users and rules changed added=bob changed=alice",
        "access: users and rules changed removed=bob changed=alice",
    ]


def test_open_streams_end_when_their_user_loses_a_right_or_its_key(world: World) -> None:
    watch = nameserver_pb2.WatchRoutesRequest(topics=["orders"])
    streams = [Stream(world.stub(KEYS[0]).WatchRoutes, watch)]
    streams[0].wait_for(1)
    world.set(KEYS[0], KEYS[1], rules=(*READS, "allow write topic orders"))
    world.wait_for(KEYS[1], is_known=True)
    assert streams[0].is_open
    world.set(KEYS[0], KEYS[1])
    wait_until(lambda: not streams[0].is_open, TIMEOUT_S, what="the stream ends")
    assert str(streams[0].error) == "the rights of user alice have changed: reopen this stream"
    streams = [Stream(world.stub(key).WatchRoutes, watch) for key in KEYS[:2]]
    for stream in streams:
        stream.wait_for(1)
    world.set(KEYS[1])
    wait_until(lambda: not streams[0].is_open, TIMEOUT_S, what="the stream ends")
    assert str(streams[0].error) == "the key of user alice is not in force any more: this stream is ended"
    assert streams[1].is_open
    streams[1].close()


def test_former_rules_stay_while_the_file_is_wrong_which_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    valid = (world.folder / "access.toml").read_text()
    for number, (text, reason) in enumerate(
        (
            ("[users.alice\n", "at line 1"),
            (valid.replace("allow read", "allow eat"), "'eat', which is no verb"),
            ("", "there is no user"),
        )
    ):
        world.swap(text)
        wait_until(lambda reason=reason: lines(caplog, reason), TIMEOUT_S, what="it is logged")  # type: ignore[misc]
        for _ in range(3):
            world.check_files()
        assert world.rejection(KEYS[0]) is None
        complaints = lines(caplog, "new files cannot be used")
        assert len(complaints) == number + 1
        assert "access.toml" in complaints[-1]
    with pytest.raises(InvalidArgument, match=r"access\.toml: there is no user"):
        world.start()
    (world.folder / "access.toml").unlink()
    with pytest.raises(InvalidArgument, match=r"has cluster\.key and no access\.toml"):
        world.start()
    assert world.rejection(KEYS[0]) is None
