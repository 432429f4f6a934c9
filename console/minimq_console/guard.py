"""Middleware that checks every request and adds headers to every response; and the pages to sign in and out."""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Collection
from contextlib import AsyncExitStack
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minimq_common.errors import MinimqError, NotAuthenticated
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_console.answers import address_of, failure_of, form_of, html_answer, json_answer, path_of
from minimq_console.console import Console
from minimq_console.console_options import host_of, is_of_this_site
from minimq_console.visitors import Visitors

_audit = logging.getLogger("minimq.audit")

#: URL path of the sign-in form.
SIGN_IN_PATH = "/sign-in"
#: Maximum bytes of a form.
MAX_FORM_BYTES = 1 << 20
#: Methods that change nothing.
_SAFE = ("GET", "HEAD")
#: Milliseconds after which the page of a visitor who is signed out reconnects.
_AGAIN_MS = 10_000
#: Maximum characters of a path or an origin in a line of the log.
_MAX_LOGGED = 300
#: No content from other sites, no inline scripts, no forms to other sites, and no frames around pages.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
#: Browsers cache static files, and revalidate them each time.
_FILE_HEADERS = {**_HEADERS, "Cache-Control": "no-cache"}


class Guard:
    """Rejects requests that no page of the console makes, identifies visitors, and adds headers to all responses."""

    def __init__(self, app: ASGIApp, visitors: Visitors, hosts: Collection[str]) -> None:
        self._app = app
        self._visitors = visitors
        self._hosts = hosts
        self._secret = secrets.token_hex(32)
        self._session = functools.cache(self._new_session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, is_file = Request(scope, receive), path_of(scope).startswith("/static/")
        send_on = functools.partial(_send_with_headers, send, scope.get("root_path", ""), is_file)
        rejection = self._rejection(request)
        if rejection is not None:
            if request.method not in _SAFE:
                _log_rejection(request, bytes(rejection.body).decode())
            await rejection(scope, receive, send_on)
        elif is_file:
            scope.setdefault("state", {}).update(visitor=None, browser="", form_token="")
            await self._app(scope, receive, send_on)
        else:
            # The cookie is named after the port, since browsers share cookies among ports; it ends with the browser.
            session = self._session(scope["scheme"], (scope.get("server") or ("", 0))[1])
            await session(scope, receive, send_on)

    def _new_session(self, scheme: str, port: int) -> SessionMiddleware:
        is_secure = scheme == "https"
        name = f"{'__Host-' if is_secure else ''}minimq-console-{port}"
        return SessionMiddleware(
            self._with_visitor, self._secret, name, max_age=None, same_site="strict", https_only=is_secure
        )

    async def _with_visitor(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        browser = str(request.session.get("id", ""))
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        host = request.client.host if request.client else "-"
        async with AsyncExitStack() as visiting:
            try:
                shown = bearer if kind.lower() == "bearer" else ""
                visitor = await visiting.enter_async_context(self._visitors.visit(browser, shown, host))
            except MinimqError as error:  # the bearer was rejected
                _log_rejection(request, error.message)
                await _failed(error)(scope, receive, send)
                return
            if visitor is None and path_of(scope) != SIGN_IN_PATH:
                if request.method not in _SAFE:
                    _log_rejection(request, "nobody has signed in")
                await _ask_to_sign_in(request)(scope, receive, send)
                return
            if not browser:
                begin_session(request)
            state = {"visitor": visitor, "browser": request.session["id"], "form_token": request.session["token"]}
            scope.setdefault("state", {}).update(state)
            await self._app(scope, receive, send)

    def _rejection(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if host_of(host) not in self._hosts:
            text = (
                f"The console is not called {host[:100]!r}: start it with --allowed-host and that name if it is, or "
                f"use one of {', '.join(sorted(self._hosts))}."
            )
            return PlainTextResponse(text, 421)
        if request.method in _SAFE:
            return None
        if not is_of_this_site(request.headers):
            return PlainTextResponse("This request comes from a page of another site, which may change nothing.", 403)
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) <= MAX_FORM_BYTES:
            return None
        text = f"A request needs a Content-Length of at most {MAX_FORM_BYTES:,} bytes."
        return PlainTextResponse(text, 413 if length.isdecimal() else 411)


def begin_session(request: Request, browser: str = "") -> None:
    """Give a browser a new session, with an id and a token for its forms that no other site knows."""
    request.session.clear()
    request.session.update(id=browser or new_id(), token=new_id())


def new_id() -> str:
    """Return a random id that cannot be guessed."""
    return secrets.token_urlsafe(32)


async def _send_with_headers(send: Send, root_path: str, is_file: bool, message: Message) -> None:
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        for name, value in (_FILE_HEADERS if is_file else _HEADERS).items():
            headers.setdefault(name, value)
        if headers.get("content-type", "").startswith("text/event-stream"):
            headers["X-Accel-Buffering"] = "no"  # nginx would keep events until its buffer is full
        for name in ("Location", "HX-Redirect"):  # pages do not know the prefix
            if root_path and headers.get(name, "").startswith("/"):
                headers[name] = root_path + headers[name]
    await send(message)


def _log_rejection(request: Request, why: str) -> None:
    text = "console: a request was rejected from=%s path=%r origin=%r said=%r"
    path, origin = request.scope["path"], request.headers.get("origin", "")
    _audit.warning(text, address_of(request.scope), path[:_MAX_LOGGED], origin[:_MAX_LOGGED], why)


def _ask_to_sign_in(request: Request) -> Response:
    accepted, path = request.headers.get("accept", ""), path_of(request.scope)
    query = bytes(request.scope.get("query_string", b"")).decode("latin-1")
    if "text/event-stream" in accepted:
        link = f"{request.scope.get('root_path', '')}{SIGN_IN_PATH}"
        html = (
            '<section class="failure" aria-label="Problem"><h2>You are signed out</h2>'
            f'<p class="problem"><a href="{link}">Sign in</a> to see this page.</p></section>'
        )
        return Response(f"retry: {_AGAIN_MS}\n\nevent: part\ndata: {html}\n\n", media_type="text/event-stream")
    if request.method in _SAFE and ("text/html" in accepted or "hx-request" in request.headers):
        place = f"{SIGN_IN_PATH}?to={quote(f'{path}?{query}' if query else path)}"
        if "hx-request" in request.headers:  # htmx would put the form into a part of the page
            return Response("", headers={"HX-Redirect": place})
        return RedirectResponse(place, 303)
    said = f"sign in at {SIGN_IN_PATH}, or send a key: Authorization: Bearer ..."
    return _failed(NotAuthenticated(said))


def _failed(error: MinimqError) -> Response:
    failure = failure_of(error)
    answer = json_answer(failure.as_json(), failure.status)
    if failure.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


#: Maximum characters of a key.
_MAX_KEY = 200


class SignInPages:
    """Answers requests to sign in and out. Used on the event loop."""

    def __init__(self, console: Console, visitors: Visitors) -> None:
        self._console = console
        self._visitors = visitors

    def routes(self) -> list[Route]:
        """Return the routes of these pages; none without access control."""
        if not self._visitors.asks_for_keys:
            return []
        return [
            Route(SIGN_IN_PATH, self.show, methods=["GET"]),
            Route(SIGN_IN_PATH, self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """Return the form; redirect a visitor who has signed in."""
        to = _place(request.query_params.get("to", ""))
        return self._form(request, to) if request.state.visitor is None else RedirectResponse(to, 303)

    async def sign_in(self, request: Request) -> Response:
        """Sign a visitor in, or show the form again with the reason."""
        form = await form_of(request)
        to, key = _place(form.text("to")), form.text("key", most=_MAX_KEY)
        host, address = request.client.host if request.client else "-", address_of(request.scope)
        browser = new_id()
        try:
            user = await self._visitors.sign_in(browser, key, host)
        except MinimqError as error:
            _audit.warning("console: rejected a sign-in from=%s reason=%r", address, error.message)
            return self._form(request, to, error)
        _audit.info("console: a visitor has signed in user=%r from=%s", user, address, extra=ALWAYS_WRITTEN)
        begin_session(request, browser)
        return RedirectResponse(to, 303)

    async def sign_out(self, request: Request) -> Response:
        await form_of(request)
        user = self._visitors.sign_out(request.state.browser)
        _audit.info("console: a visitor has signed out user=%r from=%s", user, address_of(request.scope))
        begin_session(request)
        return RedirectResponse(SIGN_IN_PATH, 303)

    def _form(self, request: Request, to: str, error: MinimqError | None = None) -> Response:
        problem = None if error is None else error.message
        shown: dict[str, object] = {"title": "Sign in", "to": to, "problem": problem, "most_key": _MAX_KEY}
        status = 200 if error is None else 403 if isinstance(error, NotAuthenticated) else failure_of(error).status
        return html_answer(self._console.rendering, request, "sign_in.html", shown, status)


def _place(text: str) -> str:
    is_page = text.startswith("/") and not text.startswith(("//", "/\\", SIGN_IN_PATH)) and text.isprintable()
    return text if is_page else "/"
