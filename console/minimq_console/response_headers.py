"""The headers of every response, which tell browsers what a page of the console never does. Pure."""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes]

#: Nothing comes from elsewhere, nothing inline runs, forms go nowhere else, and no other page frames this one.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

_ALWAYS: dict[bytes, bytes] = {
    b"content-security-policy": _POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}
#: What a browser keeps of files that are the same for everybody: it asks each time whether they have changed.
_FILES = b"no-cache"
_PAGES = b"no-store"


def with_headers(headers: Iterable[Header], path: str) -> list[Header]:
    """Return the headers of a response with those that each one has; what it says by itself stays."""
    found = [*headers]
    own = {name for name, _ in found}
    defaults = {**_ALWAYS, b"cache-control": _FILES if path.startswith("/static/") else _PAGES}
    return [*found, *((name, value) for name, value in defaults.items() if name not in own)]
