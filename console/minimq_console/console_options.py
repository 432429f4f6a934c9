"""The options of a console, with checks that reject unsafe ones, and the host names that it accepts. Pure.

A page of another site can make a browser call the console: by a host name that resolves to this machine (DNS
rebinding), which the Host header shows, or from another origin (CSRF), which Origin and Sec-Fetch-Site show.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from minimq_common.errors import InvalidArgument

#: Always allowed: they lead to the machine of the browser.
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_MAX_CHARACTERS = 300
#: The path of the console at a proxy: "/console", "/tools/minimq"; empty for none.
_PREFIX = re.compile(r"((/[A-Za-z0-9._~-]+)+)?/?")


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of a console, as `minimq console` documents them."""

    host: str = "127.0.0.1"
    port: int = 0
    interval_s: float = 2.0
    allowed_hosts: tuple[str, ...] = ()
    allow_changes: bool = False
    allow_anyone: bool = False
    tls_certificate: str = ""
    tls_key: str = ""
    registry: str = ""
    secrets: str = ""
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prefix = prefix_of(self.root_path)
        if prefix is None:
            raise InvalidArgument(f"--root-path {self.root_path!r} is no path: give one such as /console")
        object.__setattr__(self, "root_path", prefix)
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise InvalidArgument(
                    f"--trusted-proxy {proxy!r} is no IP address or network, such as 10.0.0.7 or 10.0.0.0/24"
                ) from None

    @property
    def is_secure(self) -> bool:
        """True if browsers reach the console by HTTPS alone."""
        return bool(self.tls_certificate)

    @property
    def hosts(self) -> frozenset[str]:
        """The host names that browsers may use. Raises `InvalidArgument`."""
        for other in self.allowed_hosts:
            if host_of(other) != other.lower():
                raise InvalidArgument(
                    f"--allowed-host {other!r} is no host: give a name or an IP address without a port, such as "
                    "console.example.org"
                )
        bound = _ip(self.host)
        is_any = bound.is_unspecified if bound is not None else not self.host
        own = () if is_any else (f"[{self.host}]" if ":" in self.host else self.host,)
        return frozenset(host.lower() for host in (*_LOCAL, *own, *self.allowed_hosts))

    def check(self, *, asks_for_keys: bool) -> None:
        """Raise `InvalidArgument` if options contradict each other, or would be unsafe."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidArgument("--tls-certificate and --tls-key go together: give both of them, or none")
        if is_loopback(self.host):
            return
        if asks_for_keys and not self.is_secure:
            raise InvalidArgument(
                f"visitors would send the keys of users to {self.host} without encryption: give --tls-certificate and "
                "--tls-key, or listen on 127.0.0.1, behind a proxy that has TLS"
            )
        if self.allow_changes and not asks_for_keys and not self.allow_anyone:
            raise InvalidArgument(
                f"anyone who reaches {self.host} could change this cluster, which requires no keys: listen on "
                "127.0.0.1, secure the cluster with `minimq secure init`, or give --allow-anyone"
            )


def host_of(header: str) -> str | None:
    """Return the host of a Host header in lower case, without the port; None if it is invalid."""
    found = _HOST.fullmatch(header.lower()) if len(header) <= _MAX_CHARACTERS else None
    return None if found is None else found[1]


def is_of_this_site(headers: Mapping[str, str]) -> bool:
    """Return whether a request that may change something comes from a page of the console.

    Browsers send the origin of a request. A client that sends none is no browser, and needs the token of a form.
    """
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


def prefix_of(text: str) -> str | None:
    """Return a prefix without a slash at its end; None if it is invalid."""
    return text.removesuffix("/") if _PREFIX.fullmatch(text) else None


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    found = _ip(host)
    return found.is_loopback if found is not None else host.lower() == "localhost"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
