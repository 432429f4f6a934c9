"""The JSON API: each operation that `Admin` declares at an address of its own, and the OpenAPI document of all.

`POST /api/topic/create` takes the parameters as a JSON object. With `"dry_run": true` it answers with the plan; what is
destructive takes `"yes": true`. Another site cannot send it: JSON takes a preflight, which the console refuses.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minimq import Admin, __version__
from minimq.operations.operation import Given, Operation, Parameter, flag, operations_of, read
from minimq_common.errors import InvalidArgument, MiniMQError, SystemBusy
from minimq_console.action_runs import MOST_UNDER_WAY
from minimq_console.actions import ActionLog, check_rights, needs_of
from minimq_console.answers import body_of, failure_of, json_answer
from minimq_console.console import MOST_READS, Console
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

#: Parts of a request that are no parameters of the operation.
_DRY_RUN = flag("dry_run", "Answer with what would change, and change nothing.")
_YES = flag("yes", "Needed if a dry run asks something: it may lose data.")
#: Characters of what is said about a body: it may repeat what was sent.
_MOST_SAID = 300
#: Characters before and after a fault that are shown with it.
_NEAR = 20
#: Largest whole number, if a parameter has no bound of its own.
_MOST = (1 << 63) - 1
#: All operations.
OPERATIONS = operations_of(Admin)


class JsonApi:
    """Answers requests for operations as JSON. Used on the event loop."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reads, self._changes = asyncio.Semaphore(MOST_READS), asyncio.Semaphore(MOST_UNDER_WAY)

    def routes(self) -> list[Route]:
        """Return the routes of all operations, and of the document about them."""
        own = [Route(_path(each), self._answering(each), methods=["POST"]) for each in OPERATIONS]
        return [Route("/api/openapi.json", self._describe, methods=["GET"]), *own]

    async def _describe(self, _request: Request) -> Response:
        return json_answer(openapi())

    def _answering(self, operation: Operation) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            log = ActionLog(operation.name, request)
            try:
                return json_answer(await self._answered(operation, request, log))
            except Exception as error:  # noqa: BLE001 - programs read JSON, whatever it is
                failure = failure_of(error)
                if not isinstance(error, MiniMQError):
                    _log.exception("the operation %s has failed", operation.name)
                if not operation.reads and not log.has_begun:
                    log.refused(failure.message)
                return json_answer(failure.as_json(), failure.status)

        return answer

    async def _answered(self, operation: Operation, request: Request, log: ActionLog) -> object:
        body = await _body_of(operation, request, log)
        log.given = {name: json.dumps(value) for name, value in body.items()}
        values = read(_parameters(operation), body, lambda each: each.name)
        dry_run, yes = values.pop(_DRY_RUN.name, False), values.pop(_YES.name, False)
        visitor, given = request.state.visitor, operation.given(**values)
        loop, shared = asyncio.get_running_loop(), self._console
        answer = functools.partial(self._answer_now, operation, visitor, given, log, dry_run=dry_run, yes=yes)
        if operation.reads or dry_run:
            async with _place_of(self._reads, MOST_READS), shared.flights.turn():
                return await loop.run_in_executor(shared.gathering, answer)
        async with _place_of(self._changes, MOST_UNDER_WAY):
            return await loop.run_in_executor(shared.acting, answer)

    def _answer_now(
        self, operation: Operation, visitor: Visitor, given: Given, log: ActionLog, *, dry_run: bool, yes: bool
    ) -> object:
        if not operation.reads:
            check_rights(self._console, visitor, needs_of(operation, given))
        admin: Admin = visitor.observer.changer
        plan = operation.planned(admin, given)
        question = operation.question(given, plan)
        if plan is not None and dry_run:
            told = {"changes": list(plan.sentences), "warnings": list(plan.warnings), "rows": list(plan.rows)}
            return {**told, "asks": question}
        if question and not yes:
            raise InvalidArgument(
                f'{operation.name} may lose data: look at it with "dry_run": true, then add "yes": true'
            )
        log.has_begun = not operation.reads
        try:
            view = operation.view(admin, given, operation.run(admin, given), plan)
        except Exception as error:
            if log.has_begun:
                log.failed(error.message if isinstance(error, MiniMQError) else repr(error))
            raise
        if log.has_begun:
            log.done(operation.name)
        return {"result": view.json, "notes": list(view.notes), "complete": view.is_complete}


async def _body_of(operation: Operation, request: Request, log: ActionLog) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidArgument("send the parameters as JSON, with Content-Type: application/json")
    sent = await body_of(request)
    log.given = {"body": sent[:_MOST_SAID].decode(errors="backslashreplace")}  # until its parts are known
    try:
        body: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(sent or b"{}", type=_BODIES[operation.name]))
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{operation.name}: {_fault(sent, error)[:_MOST_SAID]}") from None
    return body


def _fault(sent: bytes, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):  # it names the field
        return str(error)
    try:
        json.loads(sent.decode())
    except UnicodeDecodeError as found:
        return f"the body is not UTF-8 at byte {found.start}: {sent[max(found.start - _NEAR, 0) :][: 2 * _NEAR]!r}"
    except json.JSONDecodeError as found:
        return f"the body is no JSON: {found}, near {found.doc[max(found.pos - _NEAR, 0) :][: 2 * _NEAR]!r}"
    except RecursionError:
        return "the body is nested too deeply"
    except ValueError:  # a number of thousands of digits, behind what msgspec has found
        pass
    return str(error)


@asynccontextmanager
async def _place_of(places: asyncio.Semaphore, most: int) -> AsyncIterator[None]:
    if places.locked():
        raise SystemBusy(f"{most} requests of programs are under way: send this one again once one of them has ended")
    async with places:
        yield


def _path(operation: Operation) -> str:
    return f"/api/{operation.name.replace(' ', '/')}"


# ---- Types of bodies, and OpenAPI -------------------------------------------------------------------


def _parameters(operation: Operation) -> list[Parameter]:
    switches = (*([] if operation.reads else [_DRY_RUN]), *([_YES] if operation.asks else ()))
    return [each for each in (*operation.shown, *switches) if not each.about.is_local]


def _struct_of(name: str, parameters: Iterable[Parameter]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = [
        (
            each.name,
            Annotated[
                _type_of(each) if each.is_required else _type_of(each) | msgspec.UnsetType,
                msgspec.Meta(description=each.help),
            ],
            msgspec.NODEFAULT if each.is_required else msgspec.UNSET,
        )
        for each in parameters
    ]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)


def _type_of(parameter: Parameter) -> Any:
    about = parameter.about
    kind: Any
    if parameter.kind in (bool, dict):
        kind = bool if parameter.kind is bool else dict[str, str]
    elif parameter.parts and not parameter.is_many:
        kind = _struct_of(parameter.kind.__name__, parameter.parts)
        kind = kind if parameter.is_required else kind | bool
    elif about.choices:
        kind = Literal[tuple(about.choices)]
    elif parameter.kind in (int, float):
        most = _MOST if parameter.kind is int else None
        least = -most if most is not None else None
        low, high = least if about.low is None else about.low, most if about.high is None else about.high
        kind = Annotated[parameter.kind, msgspec.Meta(ge=low, le=high)]
        kind = kind if about.read is None else kind | str
    else:
        kind = str if about.read is None else str | int | float
    if parameter.is_many and parameter.kind is not dict:
        kind = list[kind]
    return kind | None if parameter.default is None else kind


#: The type of the body of each operation.
_BODIES = {each.name: _struct_of(_path(each), _parameters(each)) for each in OPERATIONS}


def openapi() -> dict[str, object]:
    """Return the OpenAPI document of all operations."""
    found, schemas = msgspec.json.schema_components(_BODIES.values(), ref_template="#/components/schemas/{name}")
    own = [schemas.pop(each["$ref"].rpartition("/")[2]) for each in found]
    return {
        "openapi": "3.1.0",
        "info": {"title": "minimq", "version": __version__},
        "paths": {
            _path(each): {"post": _described(each, schema)} for each, schema in zip(OPERATIONS, own, strict=True)
        },
        "components": {"schemas": schemas},
    }


def _described(operation: Operation, schema: Mapping[str, object]) -> dict[str, object]:
    return {
        "operationId": operation.function.__name__.lstrip("_"),
        "summary": operation.summary,
        "description": operation.help,
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The result, or the plan of a dry run."}},
    }
