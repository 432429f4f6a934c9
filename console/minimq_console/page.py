"""A page: a function that gathers data, and the template that shows it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from minimq import Admin
from minimq.admin.operation import operations_of
from minimq_common.errors import DeadlineExceeded, MinimqError, NotAuthenticated
from minimq_console import answers
from minimq_console.answers import Rendering
from minimq_console.console import MAX_STREAMS, MAX_TAILS, Console
from minimq_console.parameters import Parameters, WrongParameter
from minimq_console.sampler import Sample
from minimq_console.visitors import Observer, Visitor

_log = logging.getLogger(__name__)

Value = TypeVar("Value")
Default = TypeVar("Default")

#: The data of a page, by the names in its template. All pages have "missing" and "actions".
Data = dict[str, Any]

#: Timeout in seconds of all calls of a page together; later results are missing, and the page says so.
TIMEOUT_S = 1.8
_OPERATIONS = {each.name: each for each in operations_of(Admin)}
#: A stream without events for this many seconds sends a comment.
_KEEPALIVE_INTERVAL_S = 15.0
#: Maximum number of keys of a message that a row shows.
MAX_KEYS = 20
#: Milliseconds after which a browser reconnects to a stream that has ended.
_AGAIN_MS = 2_000
#: The line ends of server-sent events; other characters, such as U+2028, belong to the text.
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class ActionLink:
    """A link to an action on one object. The servers reject it if the visitor lacks a right."""

    action: str
    label: str
    address: str


class PendingCall(Generic[Value]):
    """A call that is under way on another thread."""

    def __init__(self, visit: PageContext, what: str, future: Future[Value]) -> None:
        self._visit, self._what, self._future = visit, what, future

    def required(self) -> Value:
        """Wait for the value and return it. Raises the error of the call, or `DeadlineExceeded` at the timeout."""
        try:
            return self._future.result(self._visit.left_s)
        except LateError:
            self._future.cancel()
            raise DeadlineExceeded(
                f"{self._what}: no answer within {TIMEOUT_S:g} s; the page tries again by itself"
            ) from None

    def or_else(self, default: Default) -> Value | Default:
        """Return the value; after a failure, report it as missing on the page, and return the default."""
        try:
            return self.required()
        except MinimqError as error:
            text = error.message
            self._visit.missing.append(text if text.startswith(self._what) else f"{self._what}: {text}")
            return default


@dataclass(eq=False, slots=True)
class PageContext:
    """One request of a page. Its calls to the cluster run in parallel, within `TIMEOUT_S`. Used by one thread."""

    visitor: Visitor
    parameters: Parameters
    console: Console
    #: Sentences about data that could not be read in time; the page shows the rest.
    missing: list[str] = field(default_factory=list)
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    _give_up: float = field(default_factory=lambda: time.monotonic() + TIMEOUT_S)

    @property
    def observer(self) -> Observer:
        return self.visitor.observer

    @property
    def admin(self) -> Admin:
        """An `Admin` with the rights of the visitor; call it with `ask`."""
        return self.observer.admin

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(self._give_up - time.monotonic(), 0.0)

    def ask(self, what: str, call: Callable[[], Value]) -> PendingCall[Value]:
        """Begin a call to the cluster, on another thread."""
        return PendingCall(self, what, self.console.calling.submit(call))

    def shown(self, operation: str, result: object, **given: object) -> Any:
        declared = _OPERATIONS[operation]
        return declared.view(self.admin, declared.given(**given), result, None).json

    def sample(self) -> Sample:
        """Return the last sample of the cluster; its problems are reported as missing."""
        sample = self.observer.sampler.first_sample(self.left_s)
        if sample.is_rejected:
            raise NotAuthenticated(sample.error or "")
        self.missing += sample.problems(self.now)
        return sample

    def offers(self, *offers: ActionLink) -> list[Data]:
        """Return links to actions; none if the console only reads."""
        return [asdict(each) for each in offers] if self.console.allow_changes else []


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    #: Name of its file in `templates`; events replace its block "live".
    template: str
    #: Returns the data. It runs on a thread of its own, and calls the cluster with `PageContext.ask` only.
    gather: Callable[[PageContext], Data]
    title: str
    #: Label in the navigation; None for pages that are not in it.
    label: str | None = None
    #: Seconds between refreshes while a browser watches; None for a static page.
    live_s: float | None = 2.0
    #: Returns whether the data is final, so that no events replace it.
    stays: Callable[[Data], bool] = lambda _: False
    #: Yields new rows at least every second, for pages to which rows are added; else None.
    follow: Callable[[PageContext], AsyncIterator[Data]] | None = None
    rows_template: str = ""
    has_form: bool = False
    #: It is the same for all visitors with one observer.
    is_shared: bool = True


def whole(rendering: Rendering, page: Page, data: Data, context: Mapping[str, object]) -> str:
    is_live = page.live_s is not None and not page.stays(data) and not context["wrong"]
    return rendering.template(page.template, {**context, "page": data, "title": page.title, "is_live": is_live})


def live_part(rendering: Rendering, page: Page, data: Data, context: Mapping[str, object]) -> str:
    return rendering.live_part(page.template, {**context, "page": data, "title": page.title, "is_live": True})


# ---- The two formats --------------------------------------------------------------------------------


class PageHandler:
    """Answers requests for one page. Used on the event loop."""

    def __init__(self, page: Page, console: Console) -> None:
        self._page = page
        self._console = console

    async def answer(self, request: Request) -> Response:
        visitor, parameters = request.state.visitor, answers.parameters_of(request)
        if self._page.live_s is not None and "text/event-stream" in request.headers.get("accept", ""):
            return await self._events(request, visitor, parameters)
        wrong: dict[str, str] = {}
        data = None
        while data is None:
            try:
                data = await self._gather(visitor, parameters)
            except WrongParameter as error:
                if not self._page.has_form or error.name in wrong:
                    raise
                wrong[error.name] = error.message
                parameters = parameters.without(error.name)
        render = live_part if answers.is_part(request) else whole
        html = render(self._console.rendering, self._page, data, {**answers.context_of(request), "wrong": wrong})
        return Response(html, 400 if wrong else 200, answers.HEADERS, "text/html")

    async def _gather(self, visitor: Visitor, parameters: Parameters) -> Data:
        console, loop = self._console, asyncio.get_running_loop()

        def gather_now() -> Data:
            visit = PageContext(visitor, parameters, console)
            data = self._page.gather(visit)
            return {"actions": [], **data, "missing": list(dict.fromkeys(visit.missing))}

        async def gather() -> Data:
            async with console.flights.turn():
                return await loop.run_in_executor(console.gathering, gather_now)

        return await console.flights.call(self._key(visitor, parameters), gather)

    def _key(self, visitor: Visitor, parameters: Parameters) -> tuple[Hashable, ...]:
        browser = "" if self._page.is_shared else visitor.browser
        names, query = tuple(parameters.names.items()), tuple(parameters.query.items())
        return visitor.observer, browser, self._page.path, names, query

    # ---- Events ---------------------------------------------------------------------------------

    async def _events(self, request: Request, visitor: Visitor, parameters: Parameters) -> Response:
        context = answers.context_of(request)
        if self._page.follow is not None:
            parts = self._new_rows(self._page.follow, PageContext(visitor, parameters, self._console), context)
        else:
            with suppress(MinimqError):  # the stream reports it, as it may be temporary
                if self._page.stays(await self._gather(visitor, parameters)):
                    return Response(status_code=204, headers=answers.HEADERS)  # a browser does not reconnect after that
            parts = self._live_parts(visitor, parameters, context)
        return StreamingResponse(self._stream(visitor, parts), media_type="text/event-stream", headers=answers.HEADERS)

    async def _stream(self, visitor: Visitor, parts: AsyncIterator[str]) -> AsyncIterator[str]:
        is_followed, quiet_since = self._page.follow is not None, time.monotonic()
        try:
            with self._console.stream(MAX_TAILS if is_followed else MAX_STREAMS):
                yield f"retry: {_AGAIN_MS}\n\n"
                async for html in parts:
                    if self._console.is_stopping:
                        return
                    if not visitor.is_signed_in():
                        raise NotAuthenticated("you are signed out")
                    if html:
                        yield _event_of(html, "rows" if is_followed else "part")
                    elif is_followed or time.monotonic() - quiet_since >= _KEEPALIVE_INTERVAL_S:
                        yield ": still there\n\n"
                    else:
                        continue
                    quiet_since = time.monotonic()
        except MinimqError as error:
            yield _event_of(self._failure_part(error))

    async def _live_parts(
        self, visitor: Visitor, parameters: Parameters, context: Mapping[str, object]
    ) -> AsyncIterator[str]:
        """Yield the live part, or an empty text if it is unchanged."""
        last, key, pause_s = "", (*self._key(visitor, parameters), context["path"]), self._page.live_s or 0.0
        while not self._console.is_stopping:
            part = await self._console.flights.call(
                key, lambda: self._live_part(visitor, parameters, context), max_age_s=pause_s / 2
            )
            yield part if part != last else ""
            last = part
            await self._console.pause(pause_s)

    async def _new_rows(
        self, follow: Callable[[PageContext], AsyncIterator[Data]], visit: PageContext, context: Mapping[str, object]
    ) -> AsyncIterator[str]:
        async for found in follow(visit):
            html = self._console.rendering.template(self._page.rows_template, {**context, "page": found})
            yield html.strip()

    async def _live_part(self, visitor: Visitor, parameters: Parameters, context: Mapping[str, object]) -> str:
        try:
            return live_part(self._console.rendering, self._page, await self._gather(visitor, parameters), context)
        except MinimqError as error:  # the next refresh may succeed
            return self._failure_part(error)
        except Exception as error:  # noqa: BLE001 - the stream continues: the next refresh may succeed
            _log.exception("the page %s could not be shown", self._page.path)
            return self._failure_part(error)

    def _failure_part(self, error: Exception) -> str:
        return self._console.rendering.template("failure_part.html", {"failure": answers.failure_of(error)})


def _event_of(html: str, name: str = "part") -> str:
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(html))
    return f"event: {name}\n{lines}\n"
