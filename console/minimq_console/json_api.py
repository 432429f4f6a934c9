"""The JSON API: each operation that `Admin` declares at an address of its own, and the OpenAPI document of all.

`POST /api/topic/create` takes the parameters as a JSON object. With `"dry_run": true` it answers with the plan; what is
destructive takes `"yes": true`. Another site cannot send it: JSON takes a preflight, which the console refuses.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minimq import Admin, __version__
from minimq.operations.operation import Given, Operation, Parameter, flag, operations_of
from minimq.operations.rows import json_text
from minimq_common.errors import InvalidArgument, MiniMQError, SystemBusy
from minimq_console.action_runs import MOST_UNDER_WAY
from minimq_console.actions import ActionLog, check_rights, needs_of
from minimq_console.answers import HEADERS, body_of, failure_of
from minimq_console.console import MOST_READS, Console
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

#: Parts of a request that are no parameters of the operation.
_DRY_RUN = flag("dry_run", "Answer with what would change, and change nothing.")
_YES = flag("yes", "Needed to do it: it may lose data.")
#: All operations.
OPERATIONS = operations_of(Admin)
_TYPES = {bool: "boolean", int: "integer", float: "number"}


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
        return _json(openapi())

    def _answering(self, operation: Operation) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            log = ActionLog(operation.name, request)
            try:
                return _json(await self._answered(operation, request, log))
            except Exception as error:  # noqa: BLE001 - programs read JSON, whatever it is
                failure = failure_of(error)
                if not isinstance(error, MiniMQError):
                    _log.exception("the operation %s has failed", operation.name)
                if operation.plan is not None and not log.has_begun:
                    log.refused(failure.message)
                return _json(failure.as_json(), failure.status)

        return answer

    async def _answered(self, operation: Operation, request: Request, log: ActionLog) -> object:
        body = await _object_of(operation, request)
        log.given = {name: json.dumps(value) for name, value in body.items()}
        values = _values(operation, body)
        dry_run, yes = values.pop(_DRY_RUN.name, False), values.pop(_YES.name, False)
        visitor, given = request.state.visitor, operation.given(**values)
        loop, shared = asyncio.get_running_loop(), self._console
        if operation.plan is None or dry_run:
            async with _place_of(self._reads, MOST_READS), shared.flights.turn():
                read = functools.partial(self._read, operation, visitor, given)
                return await loop.run_in_executor(shared.gathering, read)
        if operation.is_destructive and not yes:
            raise InvalidArgument(
                f'{operation.name} may lose data: look at it with "dry_run": true, then add "yes": true'
            )
        async with _place_of(self._changes, MOST_UNDER_WAY):
            change = functools.partial(self._change, operation, visitor, given, log)
            return await loop.run_in_executor(shared.acting, change)

    def _read(self, operation: Operation, visitor: Visitor, given: Given) -> object:
        admin: Admin = visitor.observer.changer
        if operation.plan is None:
            return _result(operation, admin, given)
        check_rights(self._console, visitor, needs_of(operation, given))
        plan = operation.planned(admin, given)
        return {"changes": list(plan.sentences), "warnings": list(plan.warnings), "rows": list(plan.rows)}

    def _change(self, operation: Operation, visitor: Visitor, given: Given, log: ActionLog) -> object:
        check_rights(self._console, visitor, needs_of(operation, given))
        log.has_begun = True
        try:
            result = _result(operation, visitor.observer.changer, given)
        except Exception as error:
            log.failed(error.message if isinstance(error, MiniMQError) else repr(error))
            raise
        log.done(operation.name)
        return result


def _result(operation: Operation, admin: Admin, given: Given) -> object:
    result = operation.run(admin, given)
    view = operation.view(admin, given, result, None)
    return {"result": view.json, "notes": list(view.notes), "complete": view.is_complete}


async def _object_of(operation: Operation, request: Request) -> Mapping[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidArgument("send the parameters as JSON, with Content-Type: application/json")
    sent = await body_of(request)
    try:
        body = msgspec.json.decode(sent or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise InvalidArgument("the body is not a JSON object")
    if unknown := sorted(body.keys() - _parameters(operation).keys()):
        known = ", ".join(_parameters(operation))
        raise InvalidArgument(f"{operation.name} has no parameter {unknown[0][:60]!r}: it has {known}")
    for name, value in body.items():
        parameter = _parameters(operation)[name]
        if _depth(value) > 1 + bool(parameter.parts and not parameter.is_many):
            raise InvalidArgument(f"{name} has lists or objects in it: it is not nested so deep")
    return body


def _depth(value: object) -> int:
    """Return how deep lists and objects are nested, up to three."""
    depth, level = 0, [value]
    while depth < 3 and (level := [each for each in level if isinstance(each, dict | list)]):
        depth += 1
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
    return depth


def _values(operation: Operation, body: Mapping[str, Any]) -> dict[str, Any]:
    parameters = _parameters(operation)
    if lacking := [each.name for each in parameters.values() if each.is_required and each.name not in body]:
        raise InvalidArgument(f"{operation.name} takes {', '.join(lacking)}")
    return {
        name: _value(parameters[name], value)
        for name, value in body.items()
        if value is not None or parameters[name].default is not None
    }


def _parameters(operation: Operation) -> dict[str, Parameter]:
    switches = (*([_DRY_RUN] if operation.plan is not None else ()), *([_YES] if operation.is_destructive else ()))
    return {each.name: each for each in (*operation.shown, *switches) if not each.about.is_local}


@asynccontextmanager
async def _place_of(places: asyncio.Semaphore, most: int) -> AsyncIterator[None]:
    if places.locked():
        raise SystemBusy(f"{most} requests of programs are under way: send this one again once one of them has ended")
    async with places:
        yield


def _value(parameter: Parameter, value: Any) -> Any:
    name = parameter.name
    if parameter.is_many:
        if not isinstance(value, list):
            raise InvalidArgument(f"{name} is not a list")
        return tuple(parameter.read(name, _text(name, each)) for each in value)
    if parameter.parts:
        fields = value if isinstance(value, dict) else {} if value is True else None
        if fields is None or not fields.keys() <= {each.name for each in parameter.parts}:
            raise InvalidArgument(f"{name} is not an object of {', '.join(each.name for each in parameter.parts)}")
        try:
            return msgspec.convert(fields, parameter.kind)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{name}: {error}") from None
    if parameter.kind is bool or isinstance(value, bool):
        if parameter.kind is not bool or not isinstance(value, bool):
            wanted = "true or false" if parameter.kind is bool else _TYPES.get(parameter.kind, "string")
            raise InvalidArgument(f"{name} is {json.dumps(value)[:60]}: it must be {wanted}")
        return value
    if isinstance(value, int | float) and parameter.about.read is not None and parameter.kind in (int, float):
        return value  # a number of the unit in the name
    return parameter.read(name, _text(name, value))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InvalidArgument(f"{name} is no text and no number")
    return str(value)


def _json(value: object, status: int = 200) -> Response:
    return Response(json.dumps(value, default=json_text), status, HEADERS, "application/json")


def _path(operation: Operation) -> str:
    return f"/api/{operation.name.replace(' ', '/')}"


# ---- OpenAPI ----------------------------------------------------------------------------------------


def openapi() -> dict[str, object]:
    """Return the OpenAPI document of all operations."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "minimq", "version": __version__},
        "paths": {_path(each): {"post": _described(each)} for each in OPERATIONS},
    }


def _described(operation: Operation) -> dict[str, object]:
    schema = {
        "type": "object",
        "properties": {name: _schema(each) for name, each in _parameters(operation).items()},
        "required": [each.name for each in operation.shown if each.is_required],
        "additionalProperties": False,
    }
    return {
        "operationId": operation.function.__name__.lstrip("_"),
        "summary": operation.summary,
        "description": operation.help,
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The result, or the plan of a dry run."}},
    }


def _schema(parameter: Parameter) -> dict[str, object]:
    about = parameter.about
    schema: dict[str, object] = {"type": _TYPES.get(parameter.kind, "string")}
    if parameter.kind is dict:
        return {"type": "object", "additionalProperties": schema, "description": parameter.help}
    if parameter.parts and not parameter.is_many:
        required = [each.name for each in parameter.parts if each.is_required]
        schema = {"type": "object", "properties": {each.name: _schema(each) for each in parameter.parts}}
        schema |= {"required": required, "additionalProperties": False}
    elif about.read is not None and parameter.kind in (int, float):
        schema = {"type": [_TYPES[parameter.kind], "string"]}
    bounds = {"enum": list(about.choices) or None, "minimum": about.low, "maximum": about.high}
    schema |= {name: bound for name, bound in bounds.items() if bound is not None}
    if parameter.is_many:
        schema = {"type": "array", "items": schema}
    return {**schema, "description": parameter.help}
