"""The one way in: every request passes here before a page sees it, and every response on its way out."""

from __future__ import annotations

import json
import logging
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minimq_console.hosts import AllowedHosts, is_of_this_site
from minimq_console.reception import Reception, new_id
from minimq_console.response_headers import with_headers

_audit = logging.getLogger("minimq.audit")

#: Address of the form with which a visitor signs in.
SIGN_IN_PATH = "/sign-in"
#: Bytes of the largest form.
MOST_FORM_BYTES = 1 << 20
#: Methods that change nothing.
_SAFE = ("GET", "HEAD")
#: Milliseconds after which a page whose visitor is signed out asks again.
_AGAIN_MS = 10_000
#: Characters of a path or an origin that a line of the log has.
_MOST_NOTED = 300
_SIGNED_OUT = (
    f'<section class="failure" aria-label="Problem"><h2>You are signed out</h2>'
    f'<p class="problem"><a href="{SIGN_IN_PATH}">Sign in</a> to see this page.</p></section>'
)


class ConsoleGuard:
    """Refuses requests that no page of the console makes, finds their visitors, and adds headers to all responses.

    Whoever is behind it finds in the state of the request the `visitor`, None before a sign-in, the id of the
    `browser`, and the `form_token` of its forms.
    """

    def __init__(self, app: ASGIApp, reception: Reception, hosts: AllowedHosts, *, is_secure: bool = False) -> None:
        self._app = app
        self._reception = reception
        self._hosts = hosts
        self._is_secure = is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), str(scope["path"])
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            if scope["method"] not in _SAFE:
                _note(scope, headers, refusal[1])
            await _answer(send, path, *refusal)
            return
        cookie = cookie_name(scope, is_secure=self._is_secure)
        browser, is_new = _browser_of(scope, cookie)
        visitor = self._reception.visitor(browser, address_of(scope))
        scope.setdefault("state", {}).update(
            visitor=visitor, browser=browser, form_token=self._reception.tokens.of(browser)
        )
        if visitor is None and not _is_open(path):
            if scope["method"] not in _SAFE:
                _note(scope, headers, "nobody has signed in")
            await _ask_to_sign_in(scope, send, headers)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [*message.get("headers", ())]
                if is_new and not path.startswith("/static/") and not any(name == b"set-cookie" for name, _ in added):
                    added.append((b"set-cookie", set_cookie(cookie, browser, is_secure=self._is_secure).encode()))
                message["headers"] = with_headers(added, path)
            await send(message)

        async with self._reception.serving(browser):
            await self._app(scope, receive, send_on)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            return 421, (
                f"The console is not called {host[:100]!r}: start it with --allowed-host and that name if it is, or "
                f"use one of {self._hosts}."
            )
        if scope["method"] in _SAFE:
            return None
        if not is_of_this_site(headers):
            return 403, "This request comes from a page of another site, which may change nothing here."
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MOST_FORM_BYTES:
            return 413, f"A form has at most {MOST_FORM_BYTES:,} bytes, and says how many: use less."
        return None


def _note(scope: Scope, headers: Headers, why: str) -> None:
    text = "console: a request was refused from=%s path=%r origin=%r said=%r"
    _audit.warning(
        text, address_of(scope), str(scope["path"])[:_MOST_NOTED], headers.get("origin", "")[:_MOST_NOTED], why
    )


def cookie_name(scope: Scope, *, is_secure: bool) -> str:
    """Return the name of the cookie: browsers share cookies among ports, so that it has that of this console."""
    port = (scope.get("server") or ("", 0))[1]
    return f"{'__Host-' if is_secure else ''}minimq-console-{port}"


def set_cookie(name: str, value: str, *, is_secure: bool) -> str:
    """Return the header that sets the cookie. It lives as long as the browser."""
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if is_secure else ''}"


def address_of(scope: Scope) -> str:
    """Return the address of a browser, HOST:PORT."""
    host, port = scope.get("client") or ("-", 0)
    return f"{host}:{port}"


def _browser_of(scope: Scope, cookie: str) -> tuple[str, bool]:
    # Other servers of the same host set cookies, too, and some are none by the rules: those hide none of ours.
    found = HTTPConnection(scope).cookies.get(cookie, "")
    return (found, False) if found else (new_id(), True)


def _is_open(path: str) -> bool:
    return path == SIGN_IN_PATH or path.startswith("/static/")


async def _ask_to_sign_in(scope: Scope, send: Send, headers: Headers) -> None:
    accepted, path = headers.get("accept", ""), str(scope["path"])
    query = bytes(scope.get("query_string", b"")).decode("latin-1")
    if "text/event-stream" in accepted:
        text = f"retry: {_AGAIN_MS}\n\nevent: part\ndata: {_SIGNED_OUT}\n\n"
        await _answer(send, path, 200, text, "text/event-stream")
    elif scope["method"] in _SAFE and ("text/html" in accepted or "hx-request" in headers):
        place = f"{SIGN_IN_PATH}?to={quote(f'{path}?{query}' if query else path)}"
        if "hx-request" in headers:  # which would put the form into a part of the page
            await _answer(send, path, 200, "", location=(b"hx-redirect", place))
        else:
            await _answer(send, path, 303, "", location=(b"location", place))
    else:
        said = {"error": "NOT_AUTHENTICATED", "message": f"sign in at {SIGN_IN_PATH}, with a browser"}
        await _answer(send, path, 401, json.dumps(said), "application/json")


async def _answer(
    send: Send,
    path: str,
    status: int,
    text: str,
    kind: str = "text/plain",
    *,
    location: tuple[bytes, str] | None = None,
) -> None:
    body = text.encode()
    headers = [
        (b"content-type", f"{kind}; charset=utf-8".encode()),
        (b"content-length", str(len(body)).encode()),
        *([(location[0], location[1].encode())] if location else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": with_headers(headers, path)})
    await send({"type": "http.response.body", "body": body})
