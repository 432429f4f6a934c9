"""Answers requests for one action: its form, what it will do, and that it is done."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from minimq_common.errors import AccessDenied, MiniMQError
from minimq_console.action import Action, ActionPlan
from minimq_console.action_log import ActionLog
from minimq_console.action_runs import ActionRun, ActionRuns, MistypedName, digest_of
from minimq_console.asking import Asking
from minimq_console.faces import HEADERS, context_of, failure_response, is_json, parameters_of
from minimq_console.failures import failure_of
from minimq_console.form_field import FormField, check_all
from minimq_console.forms import TOKEN, form_of
from minimq_console.guard import new_id
from minimq_console.page import Visit
from minimq_console.pages.action_run import RUN_PATH
from minimq_console.parameters import Parameters
from minimq_console.rendering import to_json
from minimq_console.surroundings import Surroundings
from minimq_console.texts import address
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds for which the answer waits for the end of an action; then the page of the action waits.
_PATIENCE_S = 3.0
#: The step of a form: to fill in, to see what will happen, to do it.
STEP, STEPS = "step", ("fill", "check", "do")
#: Fields of a confirmation that are not part of what is confirmed.
CONFIRMED, TYPED = "confirm", "typed"
_ABOUT_THE_FORM = (TOKEN, STEP, CONFIRMED, TYPED)
#: Characters of a name that is typed.
_MOST_TYPED = 255


class ActionPage(msgspec.Struct, frozen=True, kw_only=True):
    """The form of an action, or what it will do."""

    action: str
    title: str
    label: str
    back: str
    fields: tuple[FormField, ...]
    #: What it will do; None while the form is filled in.
    plan: ActionPlan | None
    #: With which it is confirmed; empty without a plan.
    confirm: str = ""
    #: What is wrong with what was filled in, or why it was not done; None if nothing is.
    problem: str | None = None
    token: str = ""


class ActionFaces:
    """Answers requests for one action. Used on the event loop."""

    def __init__(self, action: Action, surroundings: Surroundings, runs: ActionRuns) -> None:
        self._action = action
        self._surroundings = surroundings
        self._runs = runs

    async def answer(self, request: Request) -> Response:
        """Return the form or what will happen, or do what is confirmed."""
        if request.method != "POST":
            try:
                return await self._show(request, parameters_of(request))
            except MiniMQError as error:
                return self._refusal(request, error)
        log = ActionLog(self._action.name, request, self._action.private)
        try:
            form = await form_of(request)
            if form.choice(STEP, STEPS, "fill") != "do":
                return await self._show(request, form)
            return await self._do(request, form, log)
        except MiniMQError as error:
            log.refused(error.message)
            return self._refusal(request, error)

    # ---- Describing -----------------------------------------------------------------------------

    async def _show(
        self, request: Request, given: Parameters, step: str = "", error: MiniMQError | None = None
    ) -> Response:
        wants_plan = (step or given.choice(STEP, STEPS, "fill")) == "check"
        found = await self._in_thread(self._describe, request.state.visitor, given, wants_plan)
        page, problem = self._remembered(found[0], request, given), error or found[1]
        if problem is not None:
            page = msgspec.structs.replace(page, problem=problem.message)
        status = 200 if problem is None else failure_of(problem).status
        if is_json(request):
            return Response(to_json(page), status, HEADERS, "application/json")
        context = {**context_of(request), "title": page.title, "is_live": False, "page": page}
        html = self._surroundings.rendering.template("action.html", context)
        return Response(html, status, HEADERS, "text/html")

    def _describe(self, visitor: Visitor, given: Parameters, wants_plan: bool) -> tuple[ActionPage, MiniMQError | None]:
        self._check_rights(visitor, given)
        visit = self._visit(visitor, given)
        fields, plan, problem = self._action.fields(visit), None, None
        if wants_plan or not fields:
            try:
                check_all(fields, given)
                plan = self._action.plan(visit)
            except MiniMQError as error:
                if not fields:
                    raise
                problem = error
        page = ActionPage(
            action=self._action.name,
            title=self._action.title.format_map(given.names),
            label=self._action.label,
            back=address(self._action.page, given.names),
            fields=tuple(msgspec.structs.replace(field, value=field.given(given)) for field in fields),
            plan=plan,
        )
        return page, problem

    def _remembered(self, page: ActionPage, request: Request, given: Parameters) -> ActionPage:
        token, browser = request.state.form_token, request.state.browser
        if page.plan is None:
            return msgspec.structs.replace(page, token=token)
        path, plan, now_s = self._address_of(given), page.plan, time.monotonic()
        digest = digest_of(path, {**{row.name: row.value for row in page.fields}, **plan.carried})
        run = ActionRun(new_id(), browser, digest, plan.typed, page.title, path, now_s)
        self._runs.describe(run, now_s)
        return msgspec.structs.replace(page, token=token, confirm=run.number)

    # ---- Doing ----------------------------------------------------------------------------------

    async def _do(self, request: Request, form: Parameters, log: ActionLog) -> Response:
        visitor, browser, now_s = request.state.visitor, request.state.browser, time.monotonic()
        log.given = {name: form.given(name) or "" for name in form.query if name not in _ABOUT_THE_FORM}
        await self._in_thread(self._check_rights, visitor, form)
        number, typed = form.text(CONFIRMED), form.text(TYPED, most=_MOST_TYPED)
        digest = digest_of(self._address_of(form), log.given)
        try:
            run, is_first = self._runs.confirm(number, browser, digest, typed, now_s)
        except MistypedName as error:
            log.refused(error.message)
            return await self._show_again(request, form, "check", error)
        if is_first:
            loop = asyncio.get_running_loop()
            run.task = loop.run_in_executor(self._surroundings.acting, self._run, run, visitor, form, log)
        assert run.task is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(run.task), _PATIENCE_S)
        if isinstance(run.error, MiniMQError):
            return await self._show_again(request, form, "fill", run.error)
        place = address(RUN_PATH, {"run": run.number})
        if is_json(request):
            status = 500 if run.error is not None else 202 if run.state == "under way" else 200
            said = {"state": run.state, "said": run.said, "to": run.to, "run": place}
            return Response(to_json(said), status, HEADERS, "application/json")
        return RedirectResponse(place, 303, HEADERS)

    async def _show_again(self, request: Request, form: Parameters, step: str, error: MiniMQError) -> Response:
        try:
            return await self._show(request, form, step, error)
        except MiniMQError:
            return failure_response(self._surroundings, request, failure_of(error))

    def _run(self, run: ActionRun, visitor: Visitor, form: Parameters, log: ActionLog) -> None:
        def tell(sentence: str) -> None:
            run.said = sentence

        try:
            result = self._action.run(self._visit(visitor, form), tell)
        except MiniMQError as error:
            run.end(time.monotonic(), error.message, error=error)
            log.failed(error.message)
        except Exception as error:  # noqa: BLE001 - the visitor waits for an end, whatever it is
            _log.exception("the action %s has failed", self._action.name)
            run.end(time.monotonic(), "The console has an error of its own; its log says more.", error=error)
            log.failed(repr(error))
        else:
            run.end(time.monotonic(), result.said, to=result.to)
            log.done(result.said)

    def _refusal(self, request: Request, error: MiniMQError) -> Response:
        heading = "Nothing was changed" if request.method == "POST" else f"{self._action.label}: this cannot be done"
        failure = msgspec.structs.replace(failure_of(error), heading=heading)
        return failure_response(self._surroundings, request, failure)

    # ---- Both -----------------------------------------------------------------------------------

    def _check_rights(self, visitor: Visitor, given: Parameters) -> None:
        if not self._surroundings.allow_changes:
            raise AccessDenied("this console only reads: start it with --allow-changes to use its actions")
        needs = frozenset(self._action.needs(given))
        missing = needs - visitor.rights(needs)
        if missing:
            rights = " and ".join(sorted(f"'{need}'" for need in missing))
            raise AccessDenied(f"user {visitor.user} may not do this: it takes {rights}")

    def _visit(self, visitor: Visitor, given: Parameters) -> Visit:
        return Visit(visitor, given, Asking(self._surroundings.calling), allow_changes=True)

    def _address_of(self, given: Parameters) -> str:
        return address(self._action.path, given.names)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        whole = functools.partial(call, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._surroundings.gathering, whole)
