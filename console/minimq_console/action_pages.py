"""Handles the steps of an action: the form, the plan, and the run."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from minimq_common.errors import InvalidArgument, MinimqError
from minimq_console import answers
from minimq_console.action_runs import NOT_DESCRIBED, ActionRun, ActionRuns, MistypedName
from minimq_console.actions import ACTIONS, Action, ActionLog, check_changes_allowed
from minimq_console.console import Console
from minimq_console.guard import new_id
from minimq_console.page import Data, Page, PageContext, PageHandler
from minimq_console.parameters import Parameters, address
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Maximum seconds for which a response waits for the end of an action; then the page of the run takes over.
_TIMEOUT_S = 3.0
#: URL path of the page about a confirmed action.
_RUN_PATH = "/actions/{run}"
#: Name and values of the field with the step: fill in the form, show the plan, run.
_STEP, _STEPS = "step", ("fill", "check", "do")
#: Fields that are not parameters of the action.
_CONFIRMED, _TYPED = "confirm", "typed"
_CONTROL_FIELDS = {answers.TOKEN, _STEP, _CONFIRMED, _TYPED}
#: Maximum number of characters of a typed name.
_MAX_TYPED = 255


class ActionPages:
    """Answers requests for actions. Used on the event loop."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._runs = ActionRuns()

    def routes(self) -> list[Route]:
        """Return the routes of all actions, and of the page about a confirmed one."""
        run = Page(
            path=_RUN_PATH,
            template="action_run.html",
            gather=self._gather_run,
            title="Action",
            live_s=1.0,
            stays=lambda data: data["state"] != "under way",
            is_shared=False,
        )
        return [
            Route(run.path, PageHandler(run, self._console).answer, methods=["GET"]),
            *(
                Route(action.form.path, functools.partial(self._answer, action), methods=["GET", "POST"])
                for action in ACTIONS.values()
            ),
        ]

    def _gather_run(self, visit: PageContext) -> Data:
        visitor = visit.visitor
        run = self._runs.find(visit.parameters.name("run"), visitor.browser, visitor.user, time.monotonic())
        if run is None or run.state == "waiting":
            raise InvalidArgument(
                "this action is unknown: another visitor confirmed it, it was not confirmed, or it ended too long ago; "
                "the pages of the cluster show the current state"
            )
        return {name: getattr(run, name) for name in ("title", "state", "said", "rows", "to", "form")}

    async def _answer(self, action: Action, request: Request) -> Response:
        if request.method != "POST":
            try:
                parameters = answers.parameters_of(request)
                return await self._show(action, request, parameters, parameters.choice(_STEP, _STEPS, "fill"))
            except MinimqError as error:
                return self._rejection(action, request, error)
        log = ActionLog(action.form.action, request, action.form.long)
        try:
            form = await answers.form_of(request)
            step = form.choice(_STEP, _STEPS, "fill")
            number, path = form.text(_CONFIRMED), address(action.form.path, form.names)
            run = self._runs.find(number, request.state.browser, request.state.visitor.user, time.monotonic(), path)
            if run is None and number and step == "fill":
                raise InvalidArgument(NOT_DESCRIBED)
            described = form if run is None or step == "check" else run.parameters
            if step != "do":
                return await self._show(action, request, described, step)
            return await self._do(action, request, form, described, log)
        except MinimqError as error:
            log.rejected(error.message)
            return self._rejection(action, request, error)

    def _rejection(self, action: Action, request: Request, error: MinimqError) -> Response:
        heading = "Nothing was changed" if request.method == "POST" else f"{action.form.label}: this cannot be done"
        return answers.failure_answer(
            self._console.rendering, request, msgspec.structs.replace(answers.failure_of(error), heading=heading)
        )

    # ---- The form and the plan ------------------------------------------------------------------

    async def _show(
        self, action: Action, request: Request, given: Parameters, step: str, error: MinimqError | None = None
    ) -> Response:
        described = functools.partial(self._describe, action, request, given, wants_plan=step == "check")
        page, run, problem = await self._in_thread(described)
        problem = error or problem
        page |= {"token": request.state.form_token, "problem": None if problem is None else problem.message}
        if run is not None:
            self._runs.describe(run, time.monotonic())
        status = 200 if problem is None else answers.failure_of(problem).status
        return answers.html_answer(
            self._console.rendering, request, "action.html", {"title": page["title"], "page": page}, status
        )

    def _describe(
        self, action: Action, request: Request, parameters: Parameters, *, wants_plan: bool
    ) -> tuple[Data, ActionRun | None, MinimqError | None]:
        form, visitor = action.form, request.state.visitor
        check_changes_allowed(self._console)
        visit = PageContext(visitor, parameters, self._console)
        fields, run, problem, shown = action.fields(visit), None, None, None
        title, path = form.title.format_map(parameters.names), address(form.path, parameters.names)
        if wants_plan or not fields:
            try:
                given, plan = action.plan(visit)
                typed = getattr(given, form.typed) if form.typed else ""
                shown = {"rows": plan.view().json, "typed": typed}
                browser, now_s = request.state.browser, time.monotonic()
                run = ActionRun(new_id(), browser, visitor.user, given, plan, parameters, typed, title, path, now_s)
            except MinimqError as error:
                if not fields:
                    raise
                problem = error
        page = {
            "action": form.action,
            "title": title,
            "label": form.label,
            "back": address(form.page, parameters.names),
            "fields": fields,
            "plan": shown,
            "confirm": "" if run is None else run.number,
        }
        return page, run, problem

    # ---- The run --------------------------------------------------------------------------------

    async def _do(
        self, action: Action, request: Request, form: Parameters, described: Parameters, log: ActionLog
    ) -> Response:
        visitor, browser = request.state.visitor, request.state.browser
        log.given = {name: described.given(name) or "" for name in described.query if name not in _CONTROL_FIELDS}
        check_changes_allowed(self._console)
        if any(form.given(name) != described.given(name) for name in form.query.keys() - _CONTROL_FIELDS):
            raise InvalidArgument(NOT_DESCRIBED)
        number, typed = form.text(_CONFIRMED), form.text(_TYPED, most=_MAX_TYPED)
        path = address(action.form.path, form.names)
        try:
            run, is_first = self._runs.confirm(number, browser, visitor.user, path, typed, time.monotonic())
        except MistypedName as error:
            log.rejected(error.message)
            return await self._show_again(action, request, described, "check", error)
        if is_first:
            loop = asyncio.get_running_loop()
            run.task = loop.run_in_executor(self._console.acting, self._run, action, run, visitor, log)
        assert run.task is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(run.task), _TIMEOUT_S)
        if isinstance(run.error, MinimqError):
            return await self._show_again(action, request, described, "fill", run.error)
        place = address(_RUN_PATH, {"run": run.number})
        return RedirectResponse(place, 303, answers.HEADERS)

    async def _show_again(
        self, action: Action, request: Request, form: Parameters, step: str, error: MinimqError
    ) -> Response:
        try:
            return await self._show(action, request, form, step, error)
        except MinimqError:
            return answers.failure_answer(self._console.rendering, request, answers.failure_of(error))

    def _run(self, action: Action, run: ActionRun, visitor: Visitor, log: ActionLog) -> None:
        def tell(sentence: str) -> None:
            run.said = sentence

        try:
            view, to = action.run(visitor.observer.changer, run.given, run.plan, tell)
        except MinimqError as error:
            log.failed(error.message)
            run.end(time.monotonic(), error.message, error=error)
        except Exception as error:  # noqa: BLE001 - the visitor waits for an end, whatever it is
            _log.exception("the action %s has failed", action.form.action)
            log.failed(repr(error))
            run.end(time.monotonic(), "The console has an error of its own; its log says more.", error=error)
        else:
            log.done(json.dumps(view.json))
            run.end(time.monotonic(), " ".join(view.notes), rows=view.json, to=to)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        whole = functools.partial(call, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._console.gathering, whole)
