"""The pages by which visitors sign in and out."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from minimq_common.errors import InvalidArgument, MiniMQError, NotAuthenticated
from minimq_common.security.tokens import has_form
from minimq_common.serving.logs import ALWAYS_WRITTEN
from minimq_console.answers import address_of, failure_of, form_of, html_answer
from minimq_console.console import Console
from minimq_console.guard import SIGN_IN_PATH, begin_session, new_id
from minimq_console.visitors import Visitors

_audit = logging.getLogger("minimq.audit")

#: Characters of a name, and of a key or token.
_MOST_NAME, _MOST_KEY = 255, 8_192
#: How keys and tokens begin, and characters that such a text has at least.
_SECRETS, _LEAST_SECRET = ("mq_", "eyJ"), 40


class SigningIn:
    """Answers requests to sign in and out. Used on the event loop."""

    def __init__(self, console: Console, visitors: Visitors) -> None:
        self._console = console
        self._visitors = visitors

    def routes(self) -> list[Route]:
        """Return the routes of these pages; none where nobody signs in."""
        if not self._visitors.asks_for_keys:
            return []
        return [
            Route(SIGN_IN_PATH, self.show, methods=["GET"]),
            Route(SIGN_IN_PATH, self.sign_in, methods=["POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """Return the form; who has signed in already goes on."""
        to = _place(request.query_params.get("to", ""))
        return self._form(request, to) if request.state.visitor is None else RedirectResponse(to, 303)

    async def sign_in(self, request: Request) -> Response:
        """Let a visitor in, or show the form again, with the reason."""
        form = await form_of(request)
        name, to = form.text("name", most=_MOST_NAME), _place(form.text("to"))
        key = form.text("key", most=_MOST_KEY)
        if len(name) >= _LEAST_SECRET and name.lstrip().startswith(_SECRETS):  # no page and no log may show it
            return self._form(request, to, error=InvalidArgument("a key was typed as the name: it was not used"))
        host, address = request.client.host if request.client else "-", address_of(request.scope)
        browser, is_nameless = new_id(), not name and has_form(key)
        try:
            user = await self._visitors.sign_in(browser, None if is_nameless else name, key, host)
        except MiniMQError as error:
            _audit.warning("console: a visitor was not let in user=%r from=%s reason=%r", name, address, error.message)
            return self._form(request, to, name, error)
        _audit.info("console: a visitor has signed in user=%r from=%s", user, address, extra=ALWAYS_WRITTEN)
        begin_session(request, browser)
        return RedirectResponse(to, 303)

    async def sign_out(self, request: Request) -> Response:
        """Let a visitor go."""
        await form_of(request)
        user = self._visitors.sign_out(request.state.browser)
        _audit.info("console: a visitor has signed out user=%r from=%s", user, address_of(request.scope))
        begin_session(request)
        return RedirectResponse(SIGN_IN_PATH, 303)

    def _form(self, request: Request, to: str, name: str = "", error: MiniMQError | None = None) -> Response:
        said = {"title": "Sign in", "to": to, "name": name, "problem": None if error is None else error.message}
        status = 200 if error is None else 403 if isinstance(error, NotAuthenticated) else failure_of(error).status
        return html_answer(self._console, request, "sign_in.html", said, status)


def _place(text: str) -> str:
    is_page = text.startswith("/") and not text.startswith(("//", "/\\", SIGN_IN_PATH)) and text.isprintable()
    return text if is_page else "/"
