"""The three faces of a page: HTML, JSON, and events that bring its live part anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from minimq_common.errors import MiniMQError, NotAuthenticated
from minimq_console.asking import Asking
from minimq_console.failures import Failure, failure_of
from minimq_console.page import Page, PageData, Visit
from minimq_console.parameters import Parameters, WrongParameter
from minimq_console.rendering import to_json
from minimq_console.surroundings import MOST_TAILS, Surroundings
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

#: Of every answer: what was true a second ago may be wrong now, and the address alone does not say which face it is.
HEADERS = {"Cache-Control": "no-store", "Vary": "Accept, HX-Request"}
#: Seconds after which a stream without news says that it is still there.
_STILL_THERE_S = 15.0
#: Milliseconds after which a browser opens a stream again that has ended.
_AGAIN_MS = 2_000


class Faces:
    """Answers requests for one page. Used on the event loop."""

    def __init__(self, page: Page, surroundings: Surroundings) -> None:
        self._page = page
        self._surroundings = surroundings

    async def answer(self, request: Request) -> Response:
        """Return the face that the request asks for."""
        wants_json = is_json(request)
        try:
            visitor = request.state.visitor
            parameters = parameters_of(request)
            if self._page.live_s is not None and "text/event-stream" in request.headers.get("accept", ""):
                return await self._events(request, visitor, parameters)
            wrong: dict[str, str] = {}
            data = None
            while data is None:
                try:
                    data = await self._gather(visitor, parameters)
                except WrongParameter as error:
                    if wants_json or not self._page.has_form or error.name in wrong:
                        raise
                    wrong[error.name] = error.message
                    parameters = parameters.without(error.name)
            if wants_json:
                return Response(to_json(data), media_type="application/json", headers=HEADERS)
            render = self._surroundings.rendering.live_part if _is_part(request) else self._surroundings.rendering.page
            html = render(self._page, data, {**context_of(request), "wrong": wrong})
            return Response(html, 400 if wrong else 200, HEADERS, "text/html")
        except MiniMQError as error:
            return failure_response(self._surroundings, request, failure_of(error))

    async def _gather(self, visitor: Visitor, parameters: Parameters) -> PageData:
        shared, loop = self._surroundings, asyncio.get_running_loop()

        async def gather() -> PageData:
            async with shared.flights.turn():
                return await loop.run_in_executor(shared.gathering, self._gather_now, visitor, parameters)

        return await shared.flights.call(self._key(visitor, parameters), gather)

    def _key(self, visitor: Visitor, parameters: Parameters) -> tuple[Hashable, ...]:
        browser = "" if self._page.is_shared else visitor.browser
        names, query = tuple(parameters.names.items()), tuple(parameters.query.items())
        return visitor.observer, browser, self._page.path, names, query

    def _gather_now(self, visitor: Visitor, parameters: Parameters) -> PageData:
        return self._page.gather(self._visit(visitor, parameters))

    def _visit(self, visitor: Visitor, parameters: Parameters) -> Visit:
        shared = self._surroundings
        return Visit(visitor, parameters, Asking(shared.calling), shared.allow_changes, shared.decode)

    async def _events(self, request: Request, visitor: Visitor, parameters: Parameters) -> Response:
        if self._page.follow is not None:
            visit = self._visit(visitor, parameters)
            followed = self._new_rows(self._page.follow, visit, context_of(request))
            return StreamingResponse(followed, media_type="text/event-stream", headers=HEADERS)
        with suppress(MiniMQError):  # which the stream tells, as it may pass
            if (await self._gather(visitor, parameters)).stays:
                return Response(status_code=204, headers=HEADERS)  # after which a browser does not ask again
        events = self._live_parts(context_of(request), visitor, parameters)
        return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)

    async def _live_parts(
        self, context: Mapping[str, object], visitor: Visitor, parameters: Parameters
    ) -> AsyncIterator[str]:
        try:
            with self._surroundings.stream():
                yield f"retry: {_AGAIN_MS}\n\n"
                last, quiet_s, key = "", 0.0, self._key(visitor, parameters)
                pause_s = self._page.live_s or 0.0
                while visitor.is_signed_in():
                    part = await self._surroundings.flights.call(
                        (*key, context["path"]),
                        lambda: self._live_part(context, visitor, parameters),
                        max_age_s=pause_s / 2,
                    )
                    if part != last:
                        yield event_of(part)
                        last, quiet_s = part, 0.0
                    elif quiet_s >= _STILL_THERE_S:
                        yield ": still there\n\n"
                        quiet_s = 0.0
                    if await self._surroundings.pause(pause_s):
                        return
                    quiet_s += pause_s
                raise NotAuthenticated("you are signed out")
        except MiniMQError as error:
            yield event_of(self._failure_part(error))

    async def _new_rows(
        self, follow: Callable[[Visit], AsyncIterator[PageData]], visit: Visit, context: Mapping[str, object]
    ) -> AsyncIterator[str]:
        rendering = self._surroundings.rendering
        try:
            with self._surroundings.stream(MOST_TAILS):
                yield f"retry: {_AGAIN_MS}\n\n"
                async for found in follow(visit):
                    if self._surroundings.is_stopping:
                        return
                    if not visit.visitor.is_signed_in():
                        raise NotAuthenticated("you are signed out")
                    rows = rendering.template(self._page.rows_template, {**context, "page": found}).strip()
                    yield event_of(rows, "rows") if rows else ": still there\n\n"
        except MiniMQError as error:
            yield event_of(self._failure_part(error))

    async def _live_part(self, context: Mapping[str, object], visitor: Visitor, parameters: Parameters) -> str:
        try:
            data = await self._gather(visitor, parameters)
            return self._surroundings.rendering.live_part(self._page, data, context)
        except MiniMQError as error:  # it may come back
            return self._failure_part(error)
        except Exception as error:  # noqa: BLE001 - the stream goes on: the next look may work
            _log.exception("the page %s could not be shown", self._page.path)
            return self._failure_part(error)

    def _failure_part(self, error: Exception) -> str:
        return self._surroundings.rendering.template("failure_part.html", {"failure": failure_of(error)})


def is_json(request: Request) -> bool:
    """Return whether the JSON twin of a page is asked for."""
    wanted: str | None = request.query_params.get("format")
    if wanted is not None:
        return wanted == "json"
    accepted: str = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def failure_response(surroundings: Surroundings, request: Request, failure: Failure) -> Response:
    """Return a failure in the face that was asked for."""
    if is_json(request):
        return Response(to_json(failure.as_json()), failure.status, HEADERS, "application/json")
    name = "failure_part.html" if _is_part(request) else "failure.html"
    context = {**context_of(request), "failure": failure, "title": failure.heading, "is_live": False}
    html = surroundings.rendering.template(name, context)
    return Response(html, failure.status, HEADERS, "text/html")


def context_of(request: Request) -> dict[str, object]:
    """Return what templates know of the request."""
    query = {name: value for name, value in request.query_params.items() if name != "format"}
    raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    visitor = request.state.visitor
    return {
        "root": request.scope.get("root_path", ""),
        "path": raw_path.decode("latin-1").partition("?")[0],
        "query": query,
        "visitor": visitor,
        "form_token": request.state.form_token,
        "wrong": {},
    }


def event_of(html: str, name: str = "part") -> str:
    """Return HTML as a server-sent event."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {name}\n{lines}\n"


def _is_part(request: Request) -> bool:
    target: str | None = request.headers.get("hx-target")
    return target == "live"


def parameters_of(request: Request) -> Parameters:
    """Return the parameters of an address. Raises `InvalidArgument`."""
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "format"]
    return Parameters(query, {name: str(value) for name, value in request.path_params.items()})
