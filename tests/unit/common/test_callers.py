"""Callers of a server: who is let in, what is rejected unread, and what ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from minimq_common.errors import AccessDenied, NotAuthenticated, Unavailable
from minimq_common.security.access_control import AccessControl
from minimq_common.security.access_document import ADMIN, AccessDocument, StoredKey, User
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.caller import ANY_CALLER, KnownCaller, current_caller, serve_as
from minimq_common.security.needs import CallAccess, CallerKind
from minimq_common.security.user_key import UserKey, new_key
from minimq_common.wire.dispatcher import Dispatcher
from minimq_proto.v1 import broker_pb2, nameserver_pb2

ALICE, SERVER, LATER_SERVER, NOBODY = (new_key(bytes([number]) * 37) for number in range(4))
EXPIRES_MS = 1_000


def document(*rules: str, role: str = "", expires_ms: int = 0, disabled: bool = False) -> AccessDocument:
    keys, roles = {ALICE.id: StoredKey(ALICE.hash, expires_ms)}, (role,) if role else ()
    return AccessDocument({"alice": User(keys, roles, rules, disabled)})


def shown(*keys: UserKey) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "test"), *(("authorization", f"Bearer {key.text}") for key in keys)]


class World:
    """The access control of a server, and everything that it reads."""

    def __init__(self, *rules: str, role: str = "", expires_ms: int = 0) -> None:
        self.document = document(*rules, role=role, expires_ms=expires_ms)
        self.server_keys = [SERVER]
        self.now_ms = 0
        self.control = AccessControl(lambda: self.server_keys, lambda: self.document, lambda: self.now_ms)

    def identify(self, metadata: Any) -> KnownCaller:
        return self.control.identify(metadata)

    def change(self, *rules: str, role: str = "", expires_ms: int = 0, disabled: bool = False) -> None:
        self.document = document(*rules, role=role, expires_ms=expires_ms, disabled=disabled)
        self.control.refresh()


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Return a test that runs a coroutine, in which `world` may be called."""

    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]  # it is one

    run.__name__ = test.__name__
    return run


@on_loop
async def test_keys_tell_callers_and_whoever_has_none_is_told_what_to_do() -> None:
    own = World()
    assert own.identify(shown(SERVER)).user == "%servers"
    caller = own.identify(shown(ALICE))
    assert (caller.user, own.identify(shown(ALICE))) == ("alice", caller)
    for metadata, reason in (
        (shown(), "`minimq user add` makes"),
        (shown(NOBODY), "not known here"),
        (shown(ALICE, ALICE), "not known here"),
        ([("authorization", ALICE.text)], "not known here"),
        ([("authorization", "Bearer " + "x" * 5_000)], "not known here"),
        ([("authorization", b"Bearer")], "not known here"),
    ):
        with pytest.raises(NotAuthenticated, match=reason) as raised:
            own.identify(metadata)
        assert ALICE.text not in raised.value.message
    assert own.control.rejections.unauthenticated == {"none": 1, "unknown": 1, "malformed": 4}
    own.change(disabled=True)
    with pytest.raises(NotAuthenticated, match="user alice is disabled"):
        own.identify(shown(ALICE))
    own.change(expires_ms=EXPIRES_MS)
    own.identify(shown(ALICE))
    own.now_ms = EXPIRES_MS
    with pytest.raises(NotAuthenticated, match="`minimq user rotate alice`"):
        own.identify(shown(ALICE))


@on_loop
async def test_a_right_is_looked_up_once_and_decided_anew_when_rules_change() -> None:
    own = World("allow write topic t*")
    caller = own.identify(shown(ALICE))
    request = broker_pb2.Append(topic="t")
    for key in (None, ("append", "t")):
        caller.check(request, key)
    with pytest.raises(AccessDenied, match=r"may not read topic t.*`minimq user allow alice --read t`"):
        caller.check(broker_pb2.PullRequest(topic="t"))
    with pytest.raises(AccessDenied, match="allow alice --group g`"):
        caller.check(broker_pb2.PullRequest(topic="%RETRY%g"))
    with pytest.raises(AccessDenied, match="--right 'backup cluster'"):
        caller.enter(CallAccess(need=Need(Verb.BACKUP, Resource.CLUSTER)))
    with pytest.raises(AccessDenied, match="only servers"):
        caller.enter(CallAccess(CallerKind.SERVER))
    own.change("allow write topic t*", "allow read topic t")
    caller.check(broker_pb2.PullRequest(topic="t"))
    own.change("deny write topic t")
    with pytest.raises(AccessDenied):
        caller.check(request, ("append", "t"))


@on_loop
async def test_streams_end_with_the_time_of_a_key_and_with_the_key_of_a_server() -> None:
    own = World(expires_ms=EXPIRES_MS)
    began = asyncio.Queue[str]()

    async def stream(key: UserKey) -> None:
        caller = own.identify(shown(key))
        with caller.streaming():
            await began.put(caller.user)
            await asyncio.Event().wait()

    streams = [asyncio.create_task(stream(key)) for key in (ALICE, SERVER)]
    for _ in streams:
        await began.get()
    own.now_ms = EXPIRES_MS
    own.control.refresh()
    with pytest.raises(Unavailable, match="the key of user alice is not in force any more"):
        await streams[0]
    own.server_keys.insert(0, LATER_SERVER)
    own.control.refresh()
    await asyncio.sleep(0)
    assert not streams[1].done()
    own.server_keys.remove(SERVER)
    own.control.refresh()
    with pytest.raises(Unavailable, match=r"not in cluster\.key any more"):
        await streams[1]
    with pytest.raises(NotAuthenticated):
        own.identify(shown(SERVER))
    own.identify(shown(LATER_SERVER))


class LateCall:
    """A call whose request comes when the test sends it; details and context at once."""

    method = "/minimq.v1.Broker/SetPermission"

    def invocation_metadata(self) -> list[tuple[str, str | bytes]]:
        return shown(ALICE)

    def peer(self) -> str:
        return ""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()
        self.request: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        self.is_read.set()
        return await self.request

    def auth_context(self) -> dict[str, Any]:
        return {}

    def done(self) -> bool:
        return False

    async def abort(self, code: object, text: str, metadata: object) -> None:
        raise grpc.aio.AbortError(text)


@on_loop
async def test_a_request_that_comes_after_its_right_was_revoked_is_rejected() -> None:
    own = World(role=ADMIN)
    served: list[Any] = []
    errors: list[BaseException | None] = []

    async def serve(request: Any, context: Any) -> None:
        served.append(request)

    dispatcher = Dispatcher(control=own.control)
    dispatcher.add(broker_pb2.DESCRIPTOR.services_by_name["Broker"], {"SetPermission": serve})
    for later in (ADMIN, ""):
        call: Any = LateCall()
        handler: Any = dispatcher.service(call)
        calling = asyncio.ensure_future(handler.stream_unary(None, call))
        await call.is_read.wait()
        own.change("allow read topic t", role=later)
        call.request.set_result(broker_pb2.SetPermissionRequest())
        await asyncio.wait((calling,))
        errors.append(calling.exception())
    call = LateCall()
    call.request.set_result(None)
    handler = dispatcher.service(call)
    with pytest.raises(grpc.aio.AbortError):
        await handler.stream_unary(None, call)
    assert not call.is_read.is_set()
    assert (len(served), errors[0]) == (1, None)
    assert "user alice may not manage cluster" in str(errors[1])


@on_loop
async def test_a_key_that_another_user_gets_has_the_rights_of_that_user_alone() -> None:
    own = World("allow read topic t")
    former = own.identify(shown(ALICE))
    former.check(broker_pb2.PullRequest(topic="t"))
    users = {"alice": User(rules=("allow read topic t",)), "bob": User({ALICE.id: StoredKey(ALICE.hash)})}
    own.document = AccessDocument(users)
    own.control.refresh()
    caller = own.identify(shown(ALICE))
    assert caller.user == "bob"
    with pytest.raises(AccessDenied):
        caller.check(broker_pb2.PullRequest(topic="t"))
    with pytest.raises(NotAuthenticated):
        former.check(broker_pb2.PullRequest(topic="t"))


def test_where_nobody_needs_a_key_everybody_may_do_everything() -> None:
    assert current_caller() is ANY_CALLER
    assert ANY_CALLER.sees_all
    ANY_CALLER.check(nameserver_pb2.RegisterRequest())
    serve_as(ANY_CALLER)
