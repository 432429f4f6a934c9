"""Requests that no page of the console makes are rejected, and browsers are told what its pages never do."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from minimq import LocalCluster
from minimq_cli.console import serving_console
from minimq_common.errors import InvalidArgument
from minimq_console import answers
from support.console_visitor import ConsoleVisitor
from support.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def address(cluster: LocalCluster) -> Iterator[str]:
    with serving_console(cluster.nameserver, "127.0.0.1", 0, allowed_hosts=("console.example",)) as served:
        yield served.address


def connected(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


@pytest.fixture
def visitor(address: str) -> ConsoleVisitor:
    return ConsoleVisitor(address)


def test_another_name_that_leads_here_is_rejected(visitor: ConsoleVisitor) -> None:
    port = visitor.address.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "console.example", "Console.Example:443"):
        assert visitor.get("/", Host=host).status == 200, host
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "", "localhost:x", "a b"):
        rejected = visitor.get("/", Host=host)
        assert rejected.status == 421, host
        assert "--allowed-host" in rejected.text
    assert visitor.get("/static/console.css", Host="evil.example").status == 421


def test_every_response_forbids_what_comes_from_elsewhere(visitor: ConsoleVisitor) -> None:
    for path in ("/", "/nothing", "/static/live.js", "/topics?rows=x"):
        headers = visitor.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] == ("no-cache" if path.startswith("/static") else "no-store")
        assert "Server" not in headers


def test_a_form_that_is_too_large_or_does_not_say_how_large_it_is_is_rejected(visitor: ConsoleVisitor) -> None:
    assert visitor.post("/sign-out", {"x": "y" * (2 << 20)}).status == 413
    with connected(visitor.address) as chunked:
        chunked.sendall(b"POST /sign-out HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert b" 411 " in chunked.recv(1 << 16)


def test_cookies_of_other_servers_that_are_none_by_the_rules_hide_none_of_ours(visitor: ConsoleVisitor) -> None:
    visitor.get("/")
    [own] = (f"{name}={value}" for name, value in visitor.cookies.items())
    visitor.cookies.clear()
    for others in ('settings={"dark": true}', "a b=1", "x", "a[0]=1", "=", "\xfc=\xfc", 'q="1"2', ""):
        found = visitor.get("/", Cookie=f"{others}; {own}; {others}")
        assert (found.status, found.headers["Set-Cookie"]) == (200, None), others


def test_a_form_that_does_not_come_as_a_whole_holds_nothing(
    visitor: ConsoleVisitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(answers, "_WHOLE_S", 0.3)
    head = "POST /create-topic HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\ntoken="
    with connected(visitor.address) as begun:
        begun.sendall(head.encode())
        assert b" 400 " in begun.recv(1 << 16)
    with connected(visitor.address) as left:
        left.sendall(head.encode())
    with connected(visitor.address) as other:
        other.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 200 " in other.recv(1 << 16)
    assert "Traceback" not in caplog.text


def make_certificate(certificate: Path, key: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)


def test_it_is_served_by_https(cluster: LocalCluster, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    make_certificate(certificate, key)
    options = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with serving_console(cluster.nameserver, "127.0.0.1", 0, **options) as served:
        assert served.address.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        with urlopen(served.address, context=trusted) as response:
            cookie = response.headers["Set-Cookie"]
    assert cookie.startswith("__Host-")
    assert "; secure" in cookie.lower()


def test_a_renewed_certificate_counts_for_new_connections(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", int(served.address.rpartition(":")[2])), timeout=20)

    make_certificate(certificate, key)
    options = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with serving_console(cluster.nameserver, "127.0.0.1", 0, **options) as served:
        first, first_key = certificate.read_text(), key.read_bytes()
        assert shown().split() == first.split()
        make_certificate(certificate, key)
        renewed = certificate.read_text()
        wait_until(lambda: shown().split() == renewed.split())
        key.write_bytes(first_key)  # does not fit, so that the pair that fits stays
        certificate.write_text(first.replace("MII", "MIX"))
        wait_until(lambda: shown().split() == renewed.split() and "new files cannot be used" in caplog.text)


def test_a_certificate_that_cannot_be_used_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.write_text("nothing")
    for options, why in (
        ({"tls_certificate": str(nothing)}, "go together"),
        ({"tls_certificate": str(nothing), "tls_key": str(tmp_path / "none")}, "No such file"),
        ({"tls_certificate": str(nothing), "tls_key": str(nothing)}, "nothing"),
    ):
        with pytest.raises(InvalidArgument, match=why), serving_console(cluster.nameserver, "127.0.0.1", 0, **options):
            pass


def test_changes_by_anyone_have_to_be_asked_for(cluster: LocalCluster) -> None:
    with (
        pytest.raises(InvalidArgument, match="--allow-anyone"),
        serving_console(cluster.nameserver, "0.0.0.0", 0, allow_changes=True),
    ):
        pass
    with serving_console(cluster.nameserver, "0.0.0.0", 0, allow_changes=True, allow_anyone=True) as served:
        assert ConsoleVisitor(served.address.replace("0.0.0.0", "127.0.0.1")).get("/").status == 200
