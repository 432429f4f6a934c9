"""The names by which the console may be called, and where requests come from. Pure.

A page elsewhere can have a browser call the console: by a name of its own that leads to this machine (DNS rebinding),
which the Host header shows, or as another site, which Origin and Sec-Fetch-Site show.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from minimq_common.errors import InvalidArgument

#: Always allowed: they lead to the machine of the browser.
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_MOST_CHARACTERS = 300
#: The path of the console at a proxy: "/console", "/tools/minimq"; empty for none.
_PREFIX = re.compile(r"((/[A-Za-z0-9._~-]+)+)?/?")


def allowed_hosts(bound: str, others: Iterable[str] = ()) -> frozenset[str]:
    """Return the names by which browsers may call the console. Raises `InvalidArgument`."""
    for other in others:
        if host_of(other) != other.lower():
            raise InvalidArgument(
                f"--allowed-host {other!r} is no host: give a name or an IP address without a port, such as "
                "console.example.org"
            )
    own = () if _is_any(bound) else (f"[{bound}]" if ":" in bound else bound,)
    return frozenset(host.lower() for host in (*_LOCAL, *own, *others))


def host_of(header: str) -> str | None:
    """Return the host of a Host header in small letters, without the port; None if it is none."""
    found = _HOST.fullmatch(header.lower()) if len(header) <= _MOST_CHARACTERS else None
    return None if found is None else found[1]


def is_of_this_site(headers: Mapping[str, str]) -> bool:
    """Return whether a request that may change something comes from a page of the console.

    Browsers say where a request comes from; whoever says nothing is no browser, and has to show the token of a form.
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
    """Return a prefix without a slash at its end; None if the text is none."""
    return text.removesuffix("/") if _PREFIX.fullmatch(text) else None


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
