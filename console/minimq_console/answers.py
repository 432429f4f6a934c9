"""Reads requests, and renders responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qsl

import jinja2
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from minimq.admin.texts import duration_of, size_of
from minimq.admin.views import json_text
from minimq_common import errors
from minimq_common.errors import AccessDenied, InvalidArgument
from minimq_console.bodies import visible
from minimq_console.charts import HEIGHT, WIDTH
from minimq_console.parameters import Parameters, segment, with_query

#: Headers of every response: it is outdated at once, and its format depends on request headers.
HEADERS = {"Cache-Control": "no-store", "Vary": "Accept, HX-Request"}
#: Name of the form field with the CSRF token.
TOKEN = "token"
_MAX_FIELDS = 60
#: Timeout in seconds for receiving a body.
_WHOLE_S = 10.0


#: The status of each class of errors; the first match counts.
_STATUS: dict[type[errors.MinimqError], int] = {
    errors.InvalidArgument: 400,
    errors.HandleExpired: 404,
    errors.NotAuthenticated: 401,
    errors.AccessDenied: 403,
    errors.TopicNotFound: 404,
    errors.GroupNotFound: 404,
    errors.QueueNotFound: 404,
    errors.OffsetOutOfRange: 404,
    errors.TopicExists: 409,
    errors.GroupConflict: 409,
    errors.TransactionEnded: 409,
    errors.DeadlineExceeded: 504,
    errors.TransportError: 503,
    errors.SystemBusy: 503,
    errors.Closed: 503,
    errors.UsageError: 400,
}
_HEADINGS = {
    400: "This address cannot be shown",
    401: "The cluster does not know you",
    403: "You may not see this",
    404: "There is no such thing",
    405: "This address does not accept such requests",
    409: "The cluster has changed, or is in use",
    500: "The console failed",
    503: "The cluster does not answer",
    504: "The cluster does not answer in time",
}
#: Texts about errors that are not of minimq, by status.
_SENTENCES = {
    404: "The console has no page at this address: the links above lead to all pages.",
    500: "The console has an error of its own; the log of its process says more.",
}
_READING = "The console shows pages to GET requests, and does operations below /api by POST requests."
#: Heading of `SystemBusy`, in place of that of its status.
_BUSY = "Too many requests at once"


# ---- Requests ---------------------------------------------------------------------------------------


def path_of(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def address_of(scope: Scope) -> str:
    """Return the address of a browser, HOST:PORT."""
    host, port = scope.get("client") or ("-", 0)
    return f"{host}:{port}"


def is_part(request: Request) -> bool:
    target: str | None = request.headers.get("hx-target")
    return target == "live"


def parameters_of(request: Request) -> Parameters:
    """Return the parameters of a URL. Raises `InvalidArgument`."""
    return Parameters(
        request.query_params.multi_items(), {name: str(value) for name, value in request.path_params.items()}
    )


async def body_of(request: Request) -> bytes:
    """Return the body of a request; `Guard` has bounded its size. Raises `InvalidArgument`."""
    try:
        async with asyncio.timeout(_WHOLE_S):
            return bytes(await request.body())
    except (TimeoutError, ClientDisconnect):
        raise InvalidArgument(f"this request has not come as a whole within {_WHOLE_S:g} s: send it again") from None


async def form_of(request: Request) -> Parameters:
    """Return the fields of a form, whose token must be of this browser's session. Raises `MinimqError`."""
    body = await body_of(request)
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=_MAX_FIELDS
        )
    except ValueError:
        raise InvalidArgument(f"this is no form of the console: it has at most {_MAX_FIELDS} fields") from None
    form = Parameters(fields, {name: str(value) for name, value in request.path_params.items()})
    expected: str = request.state.form_token
    if not expected or not compare_digest(form.text(TOKEN).encode(), expected.encode()):
        raise AccessDenied(
            "this form belongs to another session: the console was restarted, or another console made the form; open "
            "the page again (several consoles behind one name need a balancer with sticky sessions)"
        )
    return form


def context_of(request: Request) -> dict[str, object]:
    raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return {
        "root": request.scope.get("root_path", ""),
        "path": raw_path.decode("latin-1").partition("?")[0],
        "query": dict(request.query_params),
        "visitor": request.state.visitor,
        "form_token": request.state.form_token,
        "wrong": {},
        "is_live": False,
    }


# ---- Errors -----------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True):
    status: int
    heading: str
    message: str
    #: Code of an error of minimq; empty for others.
    code: str = ""

    def as_json(self) -> dict[str, object]:
        return {"error": self.code or self.heading, "message": self.message}


def failure_of(error: Exception) -> Failure:
    if isinstance(error, errors.MinimqError):
        status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 502)
        heading = _BUSY if isinstance(error, errors.SystemBusy) else _HEADINGS.get(status, "The cluster rejected")
        return Failure(status, heading, error.message, error.code)
    status = error.status_code if isinstance(error, HTTPException) else 500
    return Failure(status, _HEADINGS.get(status, "This cannot be shown"), _SENTENCES.get(status, _READING))


# ---- Answers ----------------------------------------------------------------------------------------


def json_answer(value: object, status: int = 200) -> Response:
    """Return a value as commands print it with `--output json`."""
    return Response(json.dumps(value, default=json_text), status, HEADERS, "application/json")


def html_answer(
    rendering: Rendering, request: Request, template: str, context: Mapping[str, object], status: int = 200
) -> Response:
    """Render a template with the variables of the request and `context`."""
    html = rendering.template(template, {**context_of(request), **context})
    return Response(html, status, HEADERS, "text/html")


def failure_answer(rendering: Rendering, request: Request, failure: Failure) -> Response:
    if path_of(request.scope).startswith("/api/"):
        return json_answer(failure.as_json(), failure.status)
    name = "failure_part.html" if is_part(request) else "failure.html"
    return html_answer(rendering, request, name, {"failure": failure, "title": failure.heading}, failure.status)


# ---- Templates ----------------------------------------------------------------------------------------


#: Shown for unknown values.
_UNKNOWN = "\N{EN DASH}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


#: Template filters for figures and times; all show None as a dash.
_FIGURES: dict[str, Callable[[Any], str]] = {
    "number": "{:,.0f}".format,
    "rate": _rate,
    "size": size_of,
    "duration": duration_of,
    "instant": "{:%Y-%m-%d %H:%M:%SZ}".format,
    "share": lambda value: f"{value * 100:.0f} %",
    "value": lambda value: f"{value:,}" if isinstance(value, int) else value,
}


class Rendering:
    """The templates. Thread-safe."""

    def __init__(self, shared: Mapping[str, object]) -> None:
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("minimq_console", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name, show in _FIGURES.items():
            self._templates.filters[name] = lambda value, show=show: _UNKNOWN if value is None else show(value)
        self._templates.filters.update(segment=segment, visible=visible)
        self._templates.globals.update(with_query=with_query, chart_width=WIDTH, chart_height=HEIGHT, **shared)

    def live_part(self, name: str, context: Mapping[str, object]) -> str:
        """Render the block of a page that events replace."""
        template = self._templates.get_template(name)
        return "".join(template.blocks["live"](template.new_context(dict(context))))

    def template(self, name: str, context: Mapping[str, object]) -> str:
        html: str = self._templates.get_template(name).render(**context)
        return html
