"""The three faces of a page: HTML, JSON, and events that bring its live part anew."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from minimq_common.errors import MiniMQError, NotAuthenticated
from minimq_console import answers
from minimq_console.console import MOST_STREAMS, MOST_TAILS, Console
from minimq_console.page import Data, Page, Visit
from minimq_console.parameters import Parameters, WrongParameter
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

#: Seconds after which a stream without news says that it is still there.
_STILL_THERE_S = 15.0
#: Milliseconds after which a browser opens a stream again that has ended.
_AGAIN_MS = 2_000


class Faces:
    """Answers requests for one page. Used on the event loop."""

    def __init__(self, page: Page, console: Console) -> None:
        self._page = page
        self._console = console

    async def answer(self, request: Request) -> Response:
        """Return the face that the request asks for."""
        visitor, parameters = request.state.visitor, answers.parameters_of(request)
        if self._page.live_s is not None and "text/event-stream" in request.headers.get("accept", ""):
            return await self._events(request, visitor, parameters)
        wrong: dict[str, str] = {}
        data = None
        while data is None:
            try:
                data = await self._gather(visitor, parameters)
            except WrongParameter as error:
                if answers.is_json(request) or not self._page.has_form or error.name in wrong:
                    raise
                wrong[error.name] = error.message
                parameters = parameters.without(error.name)
        if answers.is_json(request):
            return answers.json_answer(data)
        rendering = self._console.rendering
        render = rendering.live_part if answers.is_part(request) else rendering.page
        html = render(self._page, data, {**answers.context_of(request), "wrong": wrong})
        return Response(html, 400 if wrong else 200, answers.HEADERS, "text/html")

    async def _gather(self, visitor: Visitor, parameters: Parameters) -> Data:
        console, loop = self._console, asyncio.get_running_loop()

        async def gather() -> Data:
            async with console.flights.turn():
                return await loop.run_in_executor(console.gathering, self._gather_now, visitor, parameters)

        return await console.flights.call(self._key(visitor, parameters), gather)

    def _key(self, visitor: Visitor, parameters: Parameters) -> tuple[Hashable, ...]:
        browser = "" if self._page.is_shared else visitor.browser
        names, query = tuple(parameters.names.items()), tuple(parameters.query.items())
        return visitor.observer, browser, self._page.path, names, query

    def _gather_now(self, visitor: Visitor, parameters: Parameters) -> Data:
        visit = Visit(visitor, parameters, self._console)
        data = self._page.gather(visit)
        return {"actions": [], **data, "missing": list(dict.fromkeys(visit.missing))}

    # ---- Events ---------------------------------------------------------------------------------

    async def _events(self, request: Request, visitor: Visitor, parameters: Parameters) -> Response:
        context = answers.context_of(request)
        if self._page.follow is not None:
            parts = self._new_rows(self._page.follow, Visit(visitor, parameters, self._console), context)
        else:
            with suppress(MiniMQError):  # which the stream tells, as it may pass
                if self._page.stays(await self._gather(visitor, parameters)):
                    return Response(
                        status_code=204, headers=answers.HEADERS
                    )  # after which a browser does not ask again
            parts = self._live_parts(visitor, parameters, context)
        return StreamingResponse(self._stream(visitor, parts), media_type="text/event-stream", headers=answers.HEADERS)

    async def _stream(self, visitor: Visitor, parts: AsyncIterator[str]) -> AsyncIterator[str]:
        is_followed, quiet_since = self._page.follow is not None, time.monotonic()
        try:
            with self._console.stream(MOST_TAILS if is_followed else MOST_STREAMS):
                yield f"retry: {_AGAIN_MS}\n\n"
                async for html in parts:
                    if self._console.is_stopping:
                        return
                    if not visitor.is_signed_in():
                        raise NotAuthenticated("you are signed out")
                    if html:
                        yield _event_of(html, "rows" if is_followed else "part")
                    elif is_followed or time.monotonic() - quiet_since >= _STILL_THERE_S:
                        yield ": still there\n\n"
                    else:
                        continue
                    quiet_since = time.monotonic()
        except MiniMQError as error:
            yield _event_of(self._failure_part(error))

    async def _live_parts(
        self, visitor: Visitor, parameters: Parameters, context: Mapping[str, object]
    ) -> AsyncIterator[str]:
        """Yield the live part, or nothing if it is as before."""
        last, key, pause_s = "", (*self._key(visitor, parameters), context["path"]), self._page.live_s or 0.0
        while not self._console.is_stopping:
            part = await self._console.flights.call(
                key, lambda: self._live_part(visitor, parameters, context), max_age_s=pause_s / 2
            )
            yield part if part != last else ""
            last = part
            await self._console.pause(pause_s)

    async def _new_rows(
        self, follow: Callable[[Visit], AsyncIterator[Data]], visit: Visit, context: Mapping[str, object]
    ) -> AsyncIterator[str]:
        async for found in follow(visit):
            html = self._console.rendering.template(self._page.rows_template, {**context, "page": found})
            yield html.strip()

    async def _live_part(self, visitor: Visitor, parameters: Parameters, context: Mapping[str, object]) -> str:
        try:
            return self._console.rendering.live_part(self._page, await self._gather(visitor, parameters), context)
        except MiniMQError as error:  # it may come back
            return self._failure_part(error)
        except Exception as error:  # noqa: BLE001 - the stream goes on: the next look may work
            _log.exception("the page %s could not be shown", self._page.path)
            return self._failure_part(error)

    def _failure_part(self, error: Exception) -> str:
        return self._console.rendering.template("failure_part.html", {"failure": answers.failure_of(error)})


def _event_of(html: str, name: str = "part") -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {name}\n{lines}\n"
