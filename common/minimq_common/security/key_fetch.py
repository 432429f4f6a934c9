"""Fetches the keys of an issuer by HTTPS, within bounds of time and size."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from minimq_common.errors import InvalidArgument
from minimq_common.security.token_keys import MAX_SET_BYTES

#: Seconds that one step of an answer may take, and the whole of it.
_STEP_S, _WHOLE_S = 5.0, 15.0
_OK = 200


def fetch(url: str, ca: Path | None) -> bytes:
    """Return what is at a URL; no redirect is followed."""
    # A server imports these when it has an issuer with a URL.
    import http.client
    import urllib.error
    import urllib.request as requests

    from minimq_common.security.timed_handler import TimedHandler

    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}"
    try:
        opener = requests.OpenerDirector()  # without the handlers of redirects, files and other protocols
        trusted = _trusted(ca)
        proxies = requests.ProxyHandler(None if parts.scheme == "https" else {})
        for handler in (
            *(proxies, TimedHandler(trusted, _WHOLE_S)),
            *(requests.HTTPDefaultErrorHandler(), requests.HTTPErrorProcessor()),
        ):
            opener.add_handler(handler)
        asked = requests.Request(url, headers={"Accept": "application/json", "User-Agent": "minimq"})
        with opener.open(asked, timeout=_STEP_S) as answer:
            if answer.status != _OK:
                raise InvalidArgument(f"{where} answers with status {answer.status}")
            return _read(answer, where)
    except urllib.error.HTTPError as error:
        error.close()
        raise InvalidArgument(f"{where} answers with status {error.code}; redirects are not followed") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidArgument(f"{where} is not reached: {type(reason).__name__}: {reason}"[:500]) from None


def _trusted(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the certificates in {ca} cannot be used: {error.strerror or error}") from None


def _read(answer: object, where: str) -> bytes:
    read = answer.read1  # type: ignore[attr-defined]  # of a response
    data = bytearray()
    while part := read(8 << 10):
        data += part
        if len(data) > MAX_SET_BYTES:
            raise InvalidArgument(f"the answer of {where} has over {MAX_SET_BYTES} bytes")
    return bytes(data)
