"""Tokens at a server: who is let in by one, for how long, and how many are looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minimq_common.errors import AccessDenied, InvalidArgument, MinimqError, NotAuthenticated, SystemBusy, Unavailable
from minimq_common.security import access_control
from minimq_common.security.access_control import AccessControl
from minimq_common.security.access_document import AccessDocument, User
from minimq_common.security.access_rule import need_of
from minimq_common.security.caller import KnownCaller, current_caller
from minimq_common.security.shared_access import SharedAccess
from minimq_common.security.token_gate import CHECKS_OF_ALL, CHECKS_OF_PEER, TokenGate
from minimq_common.security.tokens import MAX_SET_BYTES, MAX_TOKEN, RefusedToken, claim_of, has_form, parse_keys
from minimq_common.security.user_key import hash_of
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import Dispatcher
from minimq_proto.v1 import broker_pb2, controller_pb2
from support.cases import for_each
from support.on_loop import on_loop
from support.read_requests import read_requests
from support.tokens import TokenIssuer, encoded_part, issuer_at

ISSUER = TokenIssuer()
FILE = "keys.json"
USER = "k8s:shop:checkout"
PEER = "ipv4:192.0.2.1:7"
WRITE = need_of("write", "topic", "t")


class World:
    """A server's knowledge of callers, with one issuer."""

    def __init__(self, folder: Path, *, only_reports: bool = False) -> None:
        self.shared = SharedAccess(only_reports=only_reports)
        self.shared.settled.set()
        self.folder = folder
        self.version = 0
        self.now_ms = ISSUER_MS
        (folder / FILE).write_bytes(ISSUER.key_set())
        self.control = AccessControl(list, self.shared, folder, lambda: self.now_ms)
        self.control.start()
        self.apply()

    def apply(self, *rules: str, disabled: bool = False, **of_issuer: Any) -> None:
        self.version += 1
        issuers = {"k8s": replace(issuer_at(FILE), **of_issuer)}
        users = {USER: User(rules=rules, disabled=disabled)} if rules or disabled else {}
        self.shared.offer(AccessDocument(self.version, users, {"readers": ("allow read topic t",)}, issuers), "test")

    def see(self, text: str, peer: str = PEER) -> KnownCaller:
        """Return who has shown a token, as the dispatcher does."""
        return self.control.identify(shown(text), peer)

    def is_known(self, text: str) -> bool:
        return self.control._in_force(hash_of(text)) is not None


#: Long before tokens that are signed now expire.
ISSUER_MS = 1_000_000_000_000


def shown(text: str) -> list[tuple[str, str | bytes]]:
    return [("authorization", f"Bearer {text}")]


@on_loop
async def test_a_token_is_verified_once_and_known_until_it_expires(tmp_path: Path) -> None:
    own = World(tmp_path)
    text = ISSUER.sign(exp=ISSUER_MS / 1000 + 10)
    assert not own.is_known(text)
    caller = own.see(text)
    assert (caller.user, own.see(text), own.is_known(text)) == (USER, caller, True)
    for number in range(1_000):
        caller.allows(need_of("read", "topic", f"t-{number}"))
    assert len(caller._decisions) <= 256
    own.now_ms += 10_000
    assert not own.is_known(text)
    with pytest.raises(NotAuthenticated, match="has expired: renew it in time"):
        own.see(text)  # before anybody has looked for what is over
    await own.control.stop()


@on_loop
async def test_a_token_is_valid_a_minute_before_its_time_as_clocks_differ(tmp_path: Path) -> None:
    own = World(tmp_path)
    assert own.see(ISSUER.sign(nbf=ISSUER_MS // 1000 + 60)).user == USER
    early = ISSUER.sign(nbf=ISSUER_MS // 1000 + 61)
    with pytest.raises(NotAuthenticated, match="not valid yet"):
        own.see(early)
    own.now_ms += 1_000
    assert own.see(early).user == USER
    await own.control.stop()


@on_loop
async def test_a_token_loses_what_its_user_issuer_or_key_loses(tmp_path: Path) -> None:
    own = World(tmp_path)
    text = ISSUER.sign(groups=["dev", "ops"])
    own.apply(role_claim="groups", claimed_roles={"ops": "readers"})
    caller = own.see(text)
    assert caller.may(need_of("read", "topic", "t"))
    assert not caller.may(WRITE)
    own.apply("allow write topic t", role_claim="groups", claimed_roles={"ops": "readers"})
    assert caller.may(WRITE)
    own.apply("allow write topic t", role_claim="groups")
    assert not caller.may(need_of("read", "topic", "t"))
    assert own.see(text) is caller
    own.apply(role_claim="groups", claimed_roles={"dev": "readers"})
    assert own.see(text).may(need_of("read", "topic", "t"))  # it is read once more
    for change in ({"disabled": True}, {"user_claim": "iss"}, {"audience": "x"}, {"issuer": "x"}, {"user_prefix": ""}):
        own.apply(role_claim="groups")
        caller = own.see(text)
        own.apply(**{"role_claim": "groups", **change})  # type: ignore[arg-type]
        with pytest.raises(NotAuthenticated, match="the token of user k8s:shop:checkout is not in force any more"):
            caller.check(broker_pb2.ProbeRequest())
    await own.control.stop()


def test_so_many_tokens_are_checked_in_a_second(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(ISSUER.key_set())
    clock, bad = [0.0], ISSUER.sign(aud="other")
    gate = TokenGate(tmp_path, lambda: ISSUER_MS, lambda: clock[0])
    gate.follow({"k8s": issuer_at(FILE)})

    def checked(peer: str) -> int:
        """Return how many tokens of a peer are looked at before it has to wait."""
        for number in range(1_000):
            try:
                gate.check(bad, f"{peer}:{number}")
            except (RefusedToken, SystemBusy) as error:
                if isinstance(error, SystemBusy):
                    return number
        raise AssertionError

    assert checked("ipv4:192.0.2.1") == pytest.approx(CHECKS_OF_PEER, abs=1)
    assert checked("ipv4:192.0.2.1") == 0
    clock[0] += 0.5
    assert checked("ipv4:192.0.2.1") == pytest.approx(CHECKS_OF_PEER / 2, abs=1)
    clock[0] += 10
    assert checked("ipv6:%5B2001:db8:0:1::1%5D") == pytest.approx(CHECKS_OF_PEER, abs=1)
    assert checked("ipv6:%5B2001:db8:0:1::2%25eth0%5D") == 0  # of the same network
    clock[0] += 10
    peers = [f"ipv6:%5B2001:db8:1:{number}::1%5D" for number in range(20)]
    assert sum(map(checked, peers)) == pytest.approx(CHECKS_OF_ALL, abs=1)
    gate.stop()


@on_loop
async def test_so_many_tokens_are_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_control, "_MOST_TOKENS", 2)
    own = World(tmp_path)
    first, second, third = (ISSUER.sign(f"shop:{number}") for number in range(3))
    with own.see(first).streaming("Append"):
        own.see(second)
        own.see(third)
        assert [own.is_known(text) for text in (first, second, third)] == [True, False, True]
        with own.see(third).streaming("Append"), pytest.raises(SystemBusy, match="2 tokens are in use"):
            own.see(second)
    await own.control.stop()


@on_loop
async def test_where_refusals_are_only_reported_one_token_too_many_is_let_in_as_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "_MOST_TOKENS", 1)
    own = World(tmp_path, only_reports=True)
    first, second = (ISSUER.sign(f"shop:{number}") for number in range(2))
    with own.see(first).streaming("Append"):
        assert own.see(second).user == ""
    assert own.see(second).user == "k8s:shop:1"
    await own.control.stop()


@on_loop
async def test_a_user_has_its_streams_by_all_tokens_together(tmp_path: Path) -> None:
    own = World(tmp_path)
    one, other = (own.see(ISSUER.sign(jti=each)) for each in "ab")
    assert one is not other
    busy = pytest.raises(SystemBusy, match="has 1 Append streams open")
    with one.streaming("Append", 1), busy, other.streaming("Append", 1):
        raise AssertionError
    with other.streaming("Append", 1):
        pass
    await own.control.stop()


@on_loop
async def test_where_refusals_are_only_reported_a_bad_token_is_let_in_as_nobody(tmp_path: Path) -> None:
    own = World(tmp_path, only_reports=True)
    assert own.see(ISSUER.sign(aud="other")).user == ""
    assert own.see(ISSUER.sign()).user == USER
    assert own.control.refusals.unauthenticated == {"token-audience": 1}
    await own.control.stop()


@on_loop
async def test_without_the_library_tokens_are_refused_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)
    own = World(tmp_path)
    assert "tokens are refused, since a library is missing: `pip install 'minimq[secure]'`" in caplog.text
    with pytest.raises(NotAuthenticated, match="whoever runs it has to install minimq with the extra secure"):
        own.see(ISSUER.sign())
    await own.control.stop()


@on_loop
async def test_without_keys_nobody_knows_whether_a_token_is_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = World(tmp_path)
    own.apply(jwks="absent.json")
    with pytest.raises(Unavailable, match="keys of issuer k8s cannot be read here"):
        own.see(ISSUER.sign())
    assert "absent.json" in caplog.text
    await own.control.stop()


def test_a_server_without_an_issuer_loads_nothing_for_tokens() -> None:
    program = """
import sys
from pathlib import Path
import minimq_nameserver.server
from minimq_common.security.access_control import AccessControl
from minimq_common.security.access_document import AccessDocument
from minimq_common.security.shared_access import SharedAccess
shared = SharedAccess()
shared.offer(AccessDocument(1), "test")
AccessControl(list, shared, Path("."))
print(*(name in sys.modules for name in ("jwt", "cryptography", "urllib.request")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[:2] == ["False", "False"]


@on_loop
async def test_a_request_is_read_once_its_token_is_known_and_a_token_is_never_that_of_a_server(tmp_path: Path) -> None:
    own, callers = World(tmp_path), []
    own.apply("allow manage topic t")

    async def delete(request: Any, context: Any) -> broker_pb2.DeleteTopicResponse:
        callers.append((current_caller().user, request.topic))
        return broker_pb2.DeleteTopicResponse()

    async def report(request: Any, context: Any) -> controller_pb2.ReportResponse:
        raise AssertionError

    dispatcher = Dispatcher(control=own.control)
    with read_requests() as read:
        dispatcher.add(broker_pb2.DESCRIPTOR.services_by_name["Broker"], {"DeleteTopic": delete})
    dispatcher.add(controller_pb2.DESCRIPTOR.services_by_name["Controller"], {"Report": report})
    server = grpc.aio.server(options=rpc.server_options())
    server.add_generic_rpc_handlers((dispatcher,))
    address = await rpc.bind(server, "127.0.0.1:0")
    await server.start()
    async with rpc.open_aio_channel(address) as channel:

        async def call(request: bytes, token: str, method: str = "Broker/DeleteTopic") -> MinimqError | None:
            made: Any = channel.unary_unary(f"/minimq.v1.{method}", bytes, bytes)
            try:
                await made(request, metadata=shown(token))
            except grpc.aio.AioRpcError as error:
                return rpc.from_rpc_error(error, "server")
            return None

        wanted, other = (broker_pb2.DeleteTopicRequest(topic=topic).SerializeToString() for topic in "tu")
        assert isinstance(await call(bytes(16 << 20), ISSUER.sign(aud="other")), NotAuthenticated)
        assert read == []
        text = ISSUER.sign()
        assert await call(wanted, text) is None
        assert await call(wanted, text) is None
        assert await call(wanted, ISSUER.sign(more="x" * 4_050)) is None  # about the longest token
        assert callers == [(USER, "t")] * 3
        for token in (ISSUER.sign(jti="1"), text):
            assert isinstance(await call(other, token), AccessDenied)
        for token in (ISSUER.sign(jti="2"), text):
            assert isinstance(await call(b"", token, "Controller/Report"), AccessDenied)
        for token in (ISSUER.sign(jti="3"), text):
            assert isinstance(await call(bytes(2 << 20), token), InvalidArgument)
            assert isinstance(await call(b"\x0a\xff", token), InvalidArgument)
        assert len(callers) == 3
    await server.stop(0)
    await own.control.stop()


PARTS = st.lists(st.text("eyJhbGciOiJ_-", max_size=20), min_size=2, max_size=4).map(".".join)


@given(st.text(max_size=50) | PARTS)
def test_any_text_is_refused(text: str) -> None:
    if has_form(text):
        with pytest.raises(RefusedToken):
            claim_of(text)


def test_a_text_has_the_form_of_a_token_up_to_a_length() -> None:
    longest = "a" * (MAX_TOKEN - 4) + ".b.c"
    assert has_form(longest)
    assert not has_form(f"{longest}d")
    with pytest.raises(RefusedToken, match="is damaged"):
        claim_of(f"{encoded_part(b'[' * 4_000)}.{encoded_part(b'{}')}.a")


FIELDS = st.sampled_from(["keys", "kty", "kid", "alg", "use", "crv", "n", "e", "x", "y", "d", "other"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=20,
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_key_set_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_keys(data)


def number_of(size: int) -> str:
    """Return a number of so many bytes as a key set has it."""
    return encoded_part(bytes([255]) * size)


def changed(**fields: Any) -> bytes:
    """Return a key set whose only key has other fields; those that are None are left out."""
    [key] = json.loads(ISSUER.key_set())["keys"]
    return json.dumps(
        {"keys": [{name: value for name, value in {**key, **fields}.items() if value is not None}]}
    ).encode()


@for_each(
    ("data", "reason"),
    [
        (b"", "no JSON Web Key Set"),
        (b"[" * 10_000, "no JSON Web Key Set"),
        (b'{"keys": 7}', "no JSON Web Key Set"),
        (b'{"keys": []}', "it has no key with an id"),
        (bytes(MAX_SET_BYTES + 1), f"over {MAX_SET_BYTES} bytes"),
        (json.dumps({"keys": [{}] * 65}).encode(), "65 keys"),
        (changed(kid=None), "it has no key with an id"),
        (changed(kid="x" * 300), "it has no key with an id"),
        (changed(kid="a\nb"), "it has no key with an id"),
        (changed(use="enc"), "it has no key with an id"),
        (changed(use=None, key_ops=["wrapKey"]), "it has no key with an id"),
        (changed(alg="HS256"), "it has no key with an id"),
        (changed(alg="RS256"), "it has no key with an id"),
        (changed(kty="oct", k="c2VjcmV0"), "it has no key with an id"),
        (changed(crv="P-384"), "it has no key with an id"),
        (changed(x="AAAA"), "it has no key with an id"),
        (changed(d="AAAA"), "it has a private key"),
        (changed(d="AAAA", kid=None), "it has a private key"),
        (changed(kty="RSA", crv=None, n=encoded_part(bytes([255]) * 128), e="AQAB"), "of 2048 bits or more"),
        (changed(kty="RSA", crv=None, n=encoded_part(bytes([255]) * 2048), e="AQAB"), "of 2048 bits or more"),
        (
            changed(kty="RSA", crv=None, n=encoded_part(bytes([255]) * 256), e=encoded_part(bytes([255]) * 256)),
            "of 2048 bits or more",
        ),
    ],
)
def test_what_is_no_key_set_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        parse_keys(data)


def test_of_a_key_set_those_keys_are_taken_that_verify_tokens() -> None:
    made = TokenIssuer()
    for algorithm in ("RS256", "EdDSA"):
        made.new_key(algorithm)
    keys = json.loads(made.key_set())["keys"]
    keys[0]["key_ops"] = ["verify"]
    others = [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}, {"kty": "EC", "crv": "P-521", "kid": "b"}, 7, {"kid": 7}]
    found = parse_keys(json.dumps({"keys": [*others, *keys]}).encode())
    assert {key.id: key.algorithm for key in found.values()} == {key: kind for key, (kind, _) in made.keys.items()}
    assert len({key.print for key in found.values()}) == 3
    with pytest.raises(InvalidArgument, match="two of its keys have the id"):
        parse_keys(json.dumps({"keys": [keys[0], keys[0]]}).encode())
