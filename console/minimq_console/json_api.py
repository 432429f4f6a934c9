"""The JSON API: a URL for each operation that `Admin` declares, and the OpenAPI document of all."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from minimq import Admin, __version__
from minimq.admin.operation import Arguments, Operation, Parameter, flag, operations_of, read
from minimq_common.errors import InvalidArgument, MinimqError, SystemBusy
from minimq_console.action_runs import MAX_UNDER_WAY
from minimq_console.actions import ActionLog, check_changes_allowed
from minimq_console.answers import body_of, failure_of, json_answer
from minimq_console.console import MAX_READS, Console
from minimq_console.visitors import Visitor

_log = logging.getLogger(__name__)

#: Fields of a request that are not parameters of the operation.
_DRY_RUN = flag("dry_run", "Answer with what would change, and change nothing.")
_YES = flag("yes", "Needed if a dry run asks something: it may lose data.")
#: Maximum characters of an error about a body, which may quote it.
_MAX_SAID = 300
#: Largest whole number, if a parameter has no bound of its own.
_MAX = (1 << 63) - 1
OPERATIONS = operations_of(Admin)


class JsonApi:
    """Answers requests for operations as JSON. Used on the event loop."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reads, self._changes = asyncio.Semaphore(MAX_READS), asyncio.Semaphore(MAX_UNDER_WAY)

    def routes(self) -> list[Route]:
        """Return the routes of all operations, and of the OpenAPI document."""
        own = [Route(_path(each), self._answering(each), methods=["POST"]) for each in OPERATIONS]
        return [Route("/api/openapi.json", self._describe, methods=["GET"]), *own]

    async def _describe(self, request: Request) -> Response:
        return json_answer(openapi(request.scope.get("root_path", "")))

    def _answering(self, operation: Operation) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            log = ActionLog(operation.name, request)
            try:
                return json_answer(await self._answered(operation, request, log))
            except Exception as error:  # noqa: BLE001 - programs read JSON, whatever it is
                failure = failure_of(error)
                if not isinstance(error, MinimqError):
                    _log.exception("the operation %s has failed", operation.name)
                if not operation.reads and not log.has_begun:
                    log.rejected(failure.message)
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
            async with _place_of(self._reads, MAX_READS), shared.flights.turn():
                return await loop.run_in_executor(shared.gathering, answer)
        async with _place_of(self._changes, MAX_UNDER_WAY):
            return await loop.run_in_executor(shared.acting, answer)

    def _answer_now(
        self, operation: Operation, visitor: Visitor, given: Arguments, log: ActionLog, *, dry_run: bool, yes: bool
    ) -> object:
        if not operation.reads:
            check_changes_allowed(self._console)
        admin: Admin = visitor.observer.changer
        plan = operation.planned(admin, given)
        question = operation.question(given, plan)
        if plan is not None and dry_run:
            return {"result": plan.view().json, "notes": [], "complete": plan.is_complete, "asks": question}
        if question and not yes:
            raise InvalidArgument(
                f'{operation.name} may lose data: look at it with "dry_run": true, then add "yes": true'
            )
        log.has_begun = not operation.reads
        try:
            view = operation.view(admin, given, operation.run(admin, given), plan)
        except Exception as error:
            if log.has_begun:
                log.failed(error.message if isinstance(error, MinimqError) else repr(error))
            raise
        if log.has_begun:
            log.done(operation.name)
        return {"result": view.json, "notes": list(view.notes), "complete": view.is_complete}


async def _body_of(operation: Operation, request: Request, log: ActionLog) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise InvalidArgument("send the parameters as JSON, with Content-Type: application/json")
    sent = await body_of(request)
    log.given = {"body": sent[:_MAX_SAID].decode(errors="backslashreplace")}  # until it is parsed
    try:
        body: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(sent or b"{}", type=_BODIES[operation.name]))
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{operation.name}: {str(error)[:_MAX_SAID]}") from None
    return body


@asynccontextmanager
async def _place_of(places: asyncio.Semaphore, most: int) -> AsyncIterator[None]:
    if places.locked():
        raise SystemBusy(f"{most} requests of programs are under way: send this one again once one of them has ended")
    async with places:
        yield


def _path(operation: Operation) -> str:
    return f"/api/{operation.name.replace(' ', '/')}"


def _parameters(operation: Operation) -> list[Parameter]:
    switches = (*([] if operation.reads else [_DRY_RUN]), *([_YES] if operation.asks else ()))
    return [*operation.shown, *switches]


def _struct_of(name: str, parameters: Iterable[Parameter]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = [
        (
            each.name,
            Annotated[
                _type_of(each) if each.is_required else _type_of(each) | msgspec.UnsetType,
                msgspec.Meta(description=each.help, extra_json_schema=_shown_default(each)),
            ],
            msgspec.NODEFAULT if each.is_required else msgspec.UNSET,
        )
        for each in parameters
    ]
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)


def _shown_default(parameter: Parameter) -> dict[str, Any]:
    about, default = parameter.about, parameter.default
    if about.default is not None:
        default = about.default if about.read is not None else parameter.read(parameter.name, about.default)
    if parameter.is_required or default is None:
        return {}
    default = {value: text for text, value in about.choices.items()}.get(default, default)
    if parameter.is_many:
        default = list(default)
    return {"default": default}


def _type_of(parameter: Parameter) -> Any:
    about = parameter.about
    kind: Any
    if parameter.kind is bool:
        kind = bool
    elif about.choices:
        kind = Literal[tuple(about.choices)]
    elif parameter.kind in (int, float):
        most = _MAX if parameter.kind is int else None
        least = -most if most is not None else None
        low, high = least if about.low is None else about.low, most if about.high is None else about.high
        kind = Annotated[parameter.kind, msgspec.Meta(ge=low, le=high)]
        kind = kind if about.read is None else kind | str
    else:
        kind = str if about.read is None else str | int | float
    if parameter.is_many:
        kind = list[kind]
    return kind | None if parameter.default is None else kind


#: The type of the body of each operation.
_BODIES = {each.name: _struct_of(_path(each), _parameters(each)) for each in OPERATIONS}


#: Descriptions of failures by status; all of these responses have the same schema.
_FAILURES = {
    400: "A parameter is missing, unknown or wrong, or it may lose data and `yes` is not given.",
    401: "No user has signed in, or the key is not accepted.",
    403: "The user may not do this, or the console only reads.",
    404: "There is no such topic, group, queue or message.",
    409: "The topic exists, members of the group are connected, or the transaction changed meanwhile.",
    500: "The console has an error of its own.",
    502: "The cluster rejected.",
    503: "A server does not answer, or too much is asked at once: send it again.",
    504: "A server does not answer in time.",
}


class Error(msgspec.Struct):
    """The reason why nothing was done, or why a part may have been done."""

    #: Its stable name, such as "TOPIC_NOT_FOUND".
    error: str
    #: The cause, and the remedy if there is one.
    message: str


class Result(msgspec.Struct):
    #: As the command prints it with `--output json`; of a change, rows of what changes: what, now, then, note.
    result: Any
    notes: list[str]
    #: False if a part could not be done or examined.
    complete: bool
    #: Of a dry run: the question that `yes` answers.
    asks: str = ""


def openapi(root: str = "") -> dict[str, object]:
    """Return the OpenAPI document of all operations, with URLs below a prefix."""
    kinds = [*_BODIES.values(), Error, Result]
    found, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    bodies = [schemas.pop(each["$ref"].rpartition("/")[2]) for each in found[: len(_BODIES)]]
    failures = {str(status): {"description": said, **_content("Error")} for status, said in _FAILURES.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "minimq", "version": __version__},
        "servers": [{"url": root or "/"}],
        "security": [{"bearer": []}, {}],
        "paths": {_path(each): {"post": _described(each, body)} for each, body in zip(OPERATIONS, bodies, strict=True)},
        "components": {
            "schemas": schemas,
            "responses": failures,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The key of a user; nothing on a cluster without access control.",
                }
            },
        },
    }


def _content(schema: str) -> dict[str, object]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}


def _described(operation: Operation, body: Mapping[str, Any]) -> dict[str, object]:
    names = {each.flag: each.name for each in (*operation.shown, _DRY_RUN, _YES)}

    def named(text: str) -> str:
        return re.sub(r"`?(?<![\w-])(--[a-z][a-z-]*)`?", lambda found: f"`{names.get(found[1], found[1])}`", text)

    properties = {
        name: {**each, "description": named(each["description"])} for name, each in body["properties"].items()
    }
    failures = {str(status): {"$ref": f"#/components/responses/{status}"} for status in _FAILURES}
    return {
        "operationId": re.sub(r"[ -]", "_", operation.name),
        "summary": named(operation.summary),
        "description": named(operation.text or "\n\n".join(filter(None, operation._doc[:2]))),
        "requestBody": {
            "required": bool(body["required"]),
            "content": {"application/json": {"schema": {**body, "properties": properties}}},
        },
        "responses": {
            "200": {"description": "The result, or the plan of a dry run.", **_content("Result")},
            **failures,
        },
    }
