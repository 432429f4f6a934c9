"""The keys of an issuer: fetched within bounds, again when one is lacking, and kept while there are no others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import UnsupportedAlgorithm

from minimq.local.certificate_signer import Signer
from minimq_common.errors import InvalidArgument, MinimqError, SystemBusy, Unavailable
from minimq_common.security import issuer_keys, key_fetch
from minimq_common.security.certificates import Trust, server_context
from minimq_common.security.issuer_keys import FetchedKeys, FileKeys
from minimq_common.security.key_fetch import fetch
from minimq_common.security.tokens import MAX_SET_BYTES, TokenKey, TokenKeys, parse_keys
from support.tokens import KeyServer, TokenIssuer, key_server
from support.waiting import wait_until

PATIENCE_S = 60.0
AGAIN_S = 0.3


@pytest.fixture
def issuer() -> TokenIssuer:
    return TokenIssuer()


@pytest.fixture
def server(issuer: TokenIssuer) -> Iterator[KeyServer]:
    with key_server(issuer.key_set()) as shown:
        yield shown


@pytest.fixture
def keys(server: KeyServer) -> Iterator[FetchedKeys]:
    made = FetchedKeys("sso", server.url, None, again_s=AGAIN_S)
    yield made
    made.stop()


def outcome(find: Callable[[], TokenKey | None]) -> str:
    """Return the id of a key, or why there is none."""
    try:
        found = find()
    except MinimqError as error:
        return type(error).__name__
    return "none" if found is None else found.id


def test_a_key_that_is_lacking_is_fetched_but_not_again_and_again(
    issuer: TokenIssuer, server: KeyServer, keys: FetchedKeys
) -> None:
    first = issuer.newest
    wait_until(lambda: outcome(lambda: keys.find(first)) == first, PATIENCE_S, what="it is fetched")
    second = issuer.new_key()
    server.show(issuer.key_set())
    with pytest.raises(SystemBusy, match="are being fetched") as raised:
        keys.find(second)
    assert 0 < raised.value.retry_after_s <= AGAIN_S
    wait_until(lambda: outcome(lambda: keys.find(second)) == second, PATIENCE_S, what="the new one is fetched")
    assert outcome(lambda: keys.find(first)) == first
    asked, began = server.asked, time.monotonic()
    for number in range(1_000):
        assert outcome(lambda number=number: keys.find(f"made-up-{number}")) == "SystemBusy"  # type: ignore[misc]
    wait_until(lambda: outcome(lambda: keys.find("made-up-999")) == "none", PATIENCE_S, what="nobody has that one")
    assert server.asked - asked <= 1 + (time.monotonic() - began) / AGAIN_S
    assert len(keys._missing) <= 256


def test_a_key_that_the_issuer_shows_after_it_was_asked_for_is_fetched(issuer: TokenIssuer, server: KeyServer) -> None:
    ahead_s = [0.0]
    keys = FetchedKeys("sso", server.url, None, again_s=AGAIN_S, clock=lambda: time.monotonic() + ahead_s[0])
    late = issuer.new_key()
    wait_until(lambda: outcome(lambda: keys.find(late)) == "none", PATIENCE_S, what="a cache has the former keys")
    server.show(issuer.key_set())
    ahead_s[0] = 30.0
    wait_until(lambda: outcome(lambda: keys.find(late)) == late, PATIENCE_S, what="it is fetched")
    keys.stop()


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}, b""),
        (302, {"Location": "http://127.0.0.1:1/"}, b""),
        (204, {}, b""),
        (200, {}, b"out of order"),
        (200, {}, b'{"keys": []}'),
        (200, {}, bytes(MAX_SET_BYTES + 1)),
    ],
    ids=["error", "redirect", "nothing", "text", "empty", "large"],
)
def test_keys_stay_when_the_issuer_has_no_others(
    issuer: TokenIssuer,
    server: KeyServer,
    keys: FetchedKeys,
    answer: tuple[int, dict[str, str], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = issuer.newest
    wait_until(lambda: outcome(lambda: keys.find(first)) == first, PATIENCE_S, what="it is fetched")
    server.answer = answer
    wait_until(lambda: outcome(lambda: keys.find("new")) == "Unavailable", PATIENCE_S, what="it was asked for another")
    assert outcome(lambda: keys.find(first)) == first
    assert "keys cannot be fetched, those that are known stand issuer=sso known=1" in caplog.text
    second = issuer.new_key(drops_old=True)
    server.show(issuer.key_set())
    wait_until(lambda: outcome(lambda: keys.find(second)) == second, PATIENCE_S, what="it is back")
    assert outcome(lambda: keys.find(first)) != first


def test_keys_are_fetched_again_after_an_error_that_nobody_expects(
    issuer: TokenIssuer, server: KeyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = False

    def parse(data: bytes) -> TokenKeys:
        if fails:
            raise UnsupportedAlgorithm(f"{len(data)} bytes")  # which is no ValueError
        return parse_keys(data)

    monkeypatch.setattr(issuer_keys, "parse_keys", parse)
    keys, first = FetchedKeys("sso", server.url, None, again_s=AGAIN_S), issuer.newest
    wait_until(lambda: outcome(lambda: keys.find(first)) == first, PATIENCE_S, what="it is fetched")
    fails = True
    second = issuer.new_key(drops_old=True)
    server.show(issuer.key_set())
    wait_until(lambda: outcome(lambda: keys.find(second)) == "Unavailable", PATIENCE_S, what="it has failed")
    assert "keys were not fetched issuer=sso" in caplog.text
    fails = False
    wait_until(lambda: outcome(lambda: keys.find(second)) == second, PATIENCE_S, what="it is fetched after all")
    assert outcome(lambda: keys.find(first)) != first
    keys.stop()


def test_an_issuer_that_does_not_answer_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    keys = FetchedKeys("sso", "http://127.0.0.1:1/keys?secret=x", None, again_s=AGAIN_S)
    with pytest.raises(Unavailable, match="keys of issuer sso cannot be fetched here"):
        wait_until(lambda: keys.find("any") if outcome(lambda: keys.find("any")) == "Unavailable" else None, PATIENCE_S)
    keys.stop()
    assert "http://127.0.0.1:1 is not reached" in caplog.text
    assert "secret" not in caplog.text


def test_keys_come_from_a_server_whose_certificate_is_trusted_and_from_no_other(
    tmp_path: Path, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    signer, roots, others = Signer.new(), tmp_path / "ca.crt", tmp_path / "other.crt"
    roots.write_bytes(signer.pair.certificate)
    others.write_bytes(Signer.new().pair.certificate)
    trust = Trust(signer.pair.certificate, signer.sign_server(["127.0.0.1"]))
    with key_server(issuer.key_set(), server_context(trust, requires_certificates=False)) as server:
        assert fetch(server.url, roots) == issuer.key_set()
        for ca, reason in (
            (others, "is not reached: SSLCertVerificationError"),
            (None, "is not reached: SSLCertVerificationError"),
            (tmp_path / "absent.crt", "absent.crt cannot be used: No such file"),
        ):
            with pytest.raises(InvalidArgument, match=reason):
                fetch(server.url, ca)
        with pytest.raises(InvalidArgument, match="is not reached"):
            fetch(server.url.replace("https", "http"), None)


#: What a server sends at once, and what it then sends again and again.
DRIPS = {
    "status": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "silence": (b"", b""),
}


@contextmanager
def dripping(first: bytes, drop: bytes) -> Iterator[str]:
    """Yield the address of a server whose answer does not end."""

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(first)
            while drop:
                connection.sendall(drop)
                time.sleep(0.01)
            connection.recv(1)  # until the other end closes

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("what", DRIPS)
def test_an_answer_that_does_not_end_is_not_waited_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_fetch, "_WHOLE_S", 0.2)
    with dripping(*DRIPS[what]) as address, pytest.raises(InvalidArgument, match=r"takes longer than 0\.2 s"):
        fetch(f"http://{address}/keys", None)


def test_an_answer_is_not_waited_for_when_the_way_to_it_took_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.create_connection

    def connect_late(*given: Any, **named: Any) -> socket.socket:
        time.sleep(0.2)  # a slow DNS lookup, or first addresses that do not answer
        return connect(*given, **named)

    monkeypatch.setattr(key_fetch, "_WHOLE_S", 0.02)
    monkeypatch.setattr(socket, "create_connection", connect_late)
    with dripping(*DRIPS["body"]) as address, pytest.raises(InvalidArgument, match=r"takes longer than 0\.02 s"):
        fetch(f"http://{address}/keys", None)


@pytest.mark.parametrize(("rest", "target"), [("", "/"), ("?a=b", "/?a=b"), ("/keys?a=b", "/keys?a=b")])
def test_what_is_asked_for_is_the_rest_of_the_url(rest: str, target: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(fetch, f"http://127.0.0.1:{listener.getsockname()[1]}{rest}", None)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1 << 16).startswith(f"GET {target} HTTP/1.1\r\n".encode())
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert fetched.result(PATIENCE_S) == b"{}"


def test_a_proxy_that_does_not_come_to_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_fetch, "_WHOLE_S", 0.2)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with dripping(b"HTTP/1.1 200 OK\r\nX: ", b"x") as address:
        monkeypatch.setenv("https_proxy", f"http://{address}")
        with pytest.raises(InvalidArgument, match=r"takes longer than 0\.2 s"):
            fetch("https://sso.example.org/keys", None)


def test_an_issuer_that_is_silent_is_not_waited_for_as_long_as_one_that_answers_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_fetch, "_STEP_S", 0.1)
    with (
        dripping(*DRIPS["silence"]) as address,
        pytest.raises(InvalidArgument, match="is not reached: TimeoutError: t"),
    ):
        fetch(f"http://{address}/keys", None)


def test_keys_in_a_file_are_used_once_they_are_there_and_stay_while_it_is_damaged(
    tmp_path: Path, issuer: TokenIssuer
) -> None:
    path = tmp_path / "keys.json"
    keys = FileKeys("k8s", path)
    assert outcome(lambda: keys.find(issuer.newest)) == "Unavailable"
    path.write_bytes(issuer.key_set())
    wait_until(lambda: outcome(lambda: keys.find(issuer.newest)) == issuer.newest, PATIENCE_S, what="they are read")
    assert outcome(lambda: keys.find("other")) == "none"
    path.write_text("damaged")
    before = issuer.newest
    over = time.monotonic() + 1.1  # it looks once a second
    wait_until(lambda: outcome(lambda: keys.find(before)) == before and time.monotonic() > over, PATIENCE_S)
    issuer.new_key(drops_old=True)
    path.write_bytes(issuer.key_set())
    wait_until(lambda: outcome(lambda: keys.find(issuer.newest)) == issuer.newest, PATIENCE_S, what="they are replaced")
    assert outcome(lambda: keys.find(before)) == "none"
