"""The JSON API: each operation that `Admin` declares at an address of its own, and the OpenAPI document of all.

`POST /api/topic/create` takes the parameters as a JSON object. With `"dry_run": true` it answers with the plan; what is
destructive takes `"yes": true`. Another site cannot send it: a browser asks before it sends JSON to another origin.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minimq import Admin, __version__
from minimq.operations.operation import Given, Operation, Parameter
from minimq.operations.rows import json_text
from minimq_common.errors import AccessDenied, InvalidArgument, MiniMQError
from minimq_console.action_log import ActionLog
from minimq_console.faces import HEADERS
from minimq_console.failures import failure_of
from minimq_console.operation_actions import operations
from minimq_console.surroundings import Surroundings
from minimq_console.visitors import Visitor

#: Parts of a request that are no parameters of the operation.
_DRY_RUN, _YES = "dry_run", "yes"
_TYPES = {bool: "boolean", int: "integer", float: "number"}


class JsonApi:
    """Answers requests for operations as JSON. Used on the event loop."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    def routes(self) -> list[Route]:
        """Return the routes of all operations, and of the document about them."""
        own = [Route(_path(each), self._answering(each), methods=["POST"]) for each in operations()]
        return [Route("/api/openapi.json", self._describe, methods=["GET"]), *own]

    async def _describe(self, _request: Request) -> Response:
        return _json(openapi())

    def _answering(self, operation: Operation) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            log = ActionLog(operation.name, request) if operation.plan is not None else None
            try:
                body = await _object_of(request)
                if log is not None:
                    log.given = {name: json.dumps(value) for name, value in body.items()}
                loop, threads = asyncio.get_running_loop(), self._surroundings.acting
                found = await loop.run_in_executor(threads, self._run, operation, request.state.visitor, body, log)
            except MiniMQError as error:
                if log is not None:
                    log.refused(error.message)
                failure = failure_of(error)
                return _json(failure.as_json(), failure.status)
            return _json(found)

        return answer

    def _run(self, operation: Operation, visitor: Visitor, body: Mapping[str, Any], log: ActionLog | None) -> object:
        given = _given(operation, body)
        admin: Admin = visitor.observer.changer
        if operation.plan is None:
            return _result(operation, admin, given)
        self._check_rights(operation, visitor, given)
        if body.get(_DRY_RUN):
            plan = operation.plan(admin, given)
            return {"changes": list(plan.sentences), "warnings": list(plan.warnings), "rows": list(plan.rows)}
        if operation.is_destructive and not body.get(_YES):
            raise InvalidArgument(
                f'{operation.name} may lose data: look at it with "dry_run": true, then add "yes": true'
            )
        result = _result(operation, admin, given)
        if log is not None:
            log.done(operation.name)
        return result

    def _check_rights(self, operation: Operation, visitor: Visitor, given: Given) -> None:
        if not self._surroundings.allow_changes:
            raise AccessDenied("this console only reads: start it with --allow-changes to use its actions")
        needs = frozenset(operation.needs(given) if operation.needs is not None else ())
        if missing := needs - visitor.rights(needs):
            rights = " and ".join(sorted(f"'{need}'" for need in missing))
            raise AccessDenied(f"user {visitor.user} may not do this: it takes {rights}")


def _result(operation: Operation, admin: Admin, given: Given) -> object:
    result = operation.run(admin, given)
    view = operation.view(admin, given, result, None)
    return {"result": view.json, "notes": list(view.notes), "complete": view.is_complete}


async def _object_of(request: Request) -> Mapping[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidArgument("send the parameters as JSON, with Content-Type: application/json")
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InvalidArgument("the body is not a JSON object")
    return body


def _given(operation: Operation, body: Mapping[str, Any]) -> Given:
    parameters = {each.name: each for each in operation.shown}
    if unknown := sorted(body.keys() - parameters.keys() - {_DRY_RUN, _YES}):
        raise InvalidArgument(f"{operation.name} has no parameter {unknown[0][:60]!r}: it has {', '.join(parameters)}")
    if lacking := [each.name for each in parameters.values() if each.is_required and each.name not in body]:
        raise InvalidArgument(f"{operation.name} takes {', '.join(lacking)}")
    known = {name: value for name, value in body.items() if name in parameters and value is not None}
    return operation.given(**{name: _value(parameters[name], value) for name, value in known.items()})


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
        return parameter.kind(**fields)
    if parameter.kind is bool or isinstance(value, bool):
        if parameter.kind is not bool or not isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r}: it must be {_TYPES.get(parameter.kind, 'string')}")
        return value
    if isinstance(value, int | float) and parameter.about.read is not None and parameter.kind in (int, float):
        return value  # a number of the unit in the name
    return parameter.read(name, _text(name, value))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InvalidArgument(f"{name} is no text and no number")
    return str(value)


def _path(operation: Operation) -> str:
    return f"/api/{operation.name.replace(' ', '/')}"


def _json(value: object, status: int = 200) -> Response:
    return Response(json.dumps(value, default=json_text), status, HEADERS, "application/json")


# ---- OpenAPI ----------------------------------------------------------------------------------------


def openapi() -> dict[str, object]:
    """Return the OpenAPI document of all operations."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "minimq", "version": __version__},
        "paths": {_path(each): {"post": _described(each)} for each in operations()},
    }


def _described(operation: Operation) -> dict[str, object]:
    properties = {each.name: _schema(each) for each in operation.shown}
    if operation.plan is not None:
        properties[_DRY_RUN] = {"type": "boolean", "description": "Answer with what would change, and change nothing."}
    if operation.is_destructive:
        properties[_YES] = {"type": "boolean", "description": "Needed to do it: it may lose data."}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [each.name for each in operation.shown if each.is_required],
        "additionalProperties": False,
    }
    return {
        "operationId": operation.method,
        "summary": operation.summary,
        "description": operation.help,
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The result, or the plan of a dry run."}},
    }


def _schema(parameter: Parameter) -> dict[str, object]:
    about = parameter.about
    schema: dict[str, object] = {"type": _TYPES.get(parameter.kind, "string")}
    if parameter.parts:
        schema = {"type": "object", "properties": {each.name: _schema(each) for each in parameter.parts}}
    elif about.read is not None and parameter.kind in (int, float):
        schema = {"type": [_TYPES[parameter.kind], "string"]}
    bounds = {"enum": list(about.choices) or None, "minimum": about.low, "maximum": about.high}
    schema |= {name: bound for name, bound in bounds.items() if bound is not None}
    if parameter.is_many:
        schema = {"type": "array", "items": schema}
    return {**schema, "description": parameter.help}
