"""The pages by which visitors sign in and out."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from minimq_common.errors import InvalidArgument, MiniMQError, NotAuthenticated
from minimq_common.serving.log_handler import ALWAYS_WRITTEN
from minimq_console.console_guard import SIGN_IN_PATH, address_of, cookie_name, set_cookie
from minimq_console.faces import context_of, failure_response
from minimq_console.failures import failure_of
from minimq_console.forms import form_of
from minimq_console.reception import Reception, new_id
from minimq_console.surroundings import Surroundings

_audit = logging.getLogger("minimq.audit")

SIGN_OUT_PATH = "/sign-out"
_MOST_NAME, _MOST_KEY = 255, 500
#: How keys and tokens begin, and characters that such a text has at least.
_SECRETS, _LEAST_SECRET = ("mq_", "eyJ"), 40


class SigningIn:
    """Answers requests to sign in and out. Used on the event loop."""

    def __init__(self, surroundings: Surroundings, reception: Reception, *, is_secure: bool = False) -> None:
        self._surroundings = surroundings
        self._reception = reception
        self._is_secure = is_secure

    def routes(self) -> list[Route]:
        """Return the routes of these pages; none where nobody signs in."""
        if not self._reception.asks_for_keys:
            return []
        return [
            Route(SIGN_IN_PATH, self.show, methods=["GET"]),
            Route(SIGN_IN_PATH, self.sign_in, methods=["POST"]),
            Route(SIGN_OUT_PATH, self.sign_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """Return the form; who has signed in already goes on."""
        to = _place(request.query_params.get("to", ""))
        if request.state.visitor is not None:
            return RedirectResponse(to, 303)
        return self._form(request, to)

    async def sign_in(self, request: Request) -> Response:
        """Let a visitor in, or show the form again, with the reason."""
        try:
            form = await form_of(request, self._reception.tokens)
            name, to = form.text("name", most=_MOST_NAME), _place(form.text("to"))
        except MiniMQError as error:
            return failure_response(self._surroundings, request, failure_of(error))
        if _is_secret(name):  # which neither the page nor the log may show
            return self._form(request, to, error=InvalidArgument("a key was typed as the name: it was not used"))
        host, address = request.client.host if request.client else "-", address_of(request.scope)
        try:
            browser = await self._reception.sign_in(name, form.text("key", most=_MOST_KEY), host)
        except MiniMQError as error:
            _audit.warning("console: a visitor was not let in user=%r from=%s reason=%r", name, address, error.message)
            return self._form(request, to, name, error)
        _audit.info("console: a visitor has signed in user=%r from=%s", name, address, extra=ALWAYS_WRITTEN)
        return self._with_browser(request, RedirectResponse(to, 303), browser)

    async def sign_out(self, request: Request) -> Response:
        """Let a visitor go."""
        try:
            await form_of(request, self._reception.tokens)
        except MiniMQError as error:
            return failure_response(self._surroundings, request, failure_of(error))
        user = self._reception.sign_out(request.state.browser)
        _audit.info("console: a visitor has signed out user=%r from=%s", user, address_of(request.scope))
        return self._with_browser(request, RedirectResponse(SIGN_IN_PATH, 303), new_id())

    def _form(self, request: Request, to: str, name: str = "", error: MiniMQError | None = None) -> Response:
        html = self._surroundings.rendering.template(
            "sign_in.html",
            {
                **context_of(request),
                "title": "Sign in",
                "is_live": False,
                "to": to,
                "name": name,
                "problem": None if error is None else error.message,
            },
        )
        status = 200 if error is None else 403 if isinstance(error, NotAuthenticated) else failure_of(error).status
        return Response(html, status, media_type="text/html")

    def _with_browser(self, request: Request, response: Response, browser: str) -> Response:
        cookie = cookie_name(request.scope, is_secure=self._is_secure)
        response.headers["set-cookie"] = set_cookie(cookie, browser, is_secure=self._is_secure)
        return response


def _is_secret(name: str) -> bool:
    return len(name) >= _LEAST_SECRET and name.lstrip().startswith(_SECRETS)


def _place(text: str) -> str:
    is_page = text.startswith("/") and not text.startswith(("//", "/\\", SIGN_IN_PATH)) and text.isprintable()
    return text if is_page else "/"
