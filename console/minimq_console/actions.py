"""Actions: forms of operations. Each shows a plan, with current figures of the cluster, before it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from starlette.requests import Request

from minimq import Admin
from minimq.admin.operation import Arguments, Form, Operation, Parameter, operations_of, read
from minimq.admin.views import Plan, View
from minimq_common.errors import AccessDenied, InvalidArgument
from minimq_common.model import Permission, permission_name
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.text_units import quoted
from minimq_console.answers import address_of
from minimq_console.console import Console
from minimq_console.page import ActionLink, Data, PageContext
from minimq_console.parameters import Parameters, address, with_query
from minimq_console.produce import Sender

_audit = logging.getLogger("minimq.audit")

#: Maximum characters of a value, and of a sentence, in a line of the audit log.
_MAX_VALUE, _MAX_SAID = 100, 1_000
#: Share of the time of a page in which a plan may count messages.
_PLAN_TIME_SHARE = 0.6
#: Maximum characters of a field: of one line, of several values, and of one in `Form.long`.
_LINE, _VALUES, _LONG = 1_000, 20_000, 200_000


class Action:
    """A form of an operation: its link, fields, plan and run."""

    def __init__(self, operation: Operation, form: Form) -> None:
        self.form = form
        self._operation = operation
        self._parameters = {each.name: each for each in operation.shown}

    def on(self, query: Mapping[str, str] | None = None, label: str = "", **names: str) -> ActionLink:
        """Return the link to its form for one object, or to its plan if `query` fills the form in."""
        filled_in = query or {}
        place = address(self.form.path, names) + (with_query({**filled_in, "step": "check"}) if filled_in else "")
        return ActionLink(self.form.action, label or self.form.label, place)

    def fields(self, visit: PageContext) -> list[Data]:
        """Return the fields, with the form input or their initial values."""
        names = self._operation.given(**self._values({}, visit.parameters))
        defaults, choices = self._asked(visit, self.form.defaults, names), self._asked(visit, self.form.choices, names)
        return [
            self._field(visit.parameters, name, defaults.get(name), choices.get(name))
            for name in self.form.fields
            if defaults.get(name, "") is not None
        ]

    def plan(self, visit: PageContext) -> tuple[Arguments, Plan]:
        """Return the arguments from the form input, and the plan."""
        given = self.given(visit.parameters)
        given.max_wait_s = _PLAN_TIME_SHARE * visit.left_s
        found = visit.ask(self.form.label, lambda: self._operation.planned(visit.admin, given)).required()
        assert found is not None  # every change has a plan
        return given, found

    def run(self, changer: Admin, given: Arguments, plan: Plan, progress: Callable[[str], None]) -> tuple[View, str]:
        """Run a plan; return the result, and the URL path of the page that shows the effect."""
        if any(each.name == "progress" for each in self._operation.parameters):
            given.progress = lambda seen, total: progress(f"{seen:,} of {total:,} were examined.")
        view = self._operation.view(changer, given, self._operation.run(changer, given), plan)
        names = {name: value for name, value in vars(given).items() if isinstance(value, str)}
        return view, view.to or address(self.form.to or self.form.page, names)

    def _asked(
        self, visit: PageContext, ask: Callable[[Admin, Arguments], Mapping[str, Any]] | None, names: Arguments
    ) -> Any:
        return visit.ask(self.form.label, lambda: ask(visit.admin, names)).required() if ask else {}

    def _values(self, source: Mapping[str, Any], given: Parameters) -> dict[str, Any]:
        labels, names = self.form.fields, given.names  # names in the path need not be parameters
        found = read(self._parameters.values(), {**source, **names}, lambda each: labels.get(each.name, each.name))
        return {**names, **found}

    def _text(self, given: Parameters, name: str) -> str:
        return given.given(self._parameters[name].key) or ""

    def given(self, parameters: Parameters) -> Arguments:
        """Return the arguments from the form input. Raises `InvalidArgument`."""
        source: dict[str, Any] = {}
        for name, parameter in self._parameters.items():
            # A URL may set parameters that are no fields of the form.
            if name not in self.form.fields and parameter.key not in parameters.query:
                continue
            label, is_long = self.form.fields.get(name, name), name in self.form.long
            text = self._text(parameters, name)
            text = text if is_long else text.strip()
            _check(text, parameter, label, self._most(name))
            if parameter.kind is bool:
                source[name] = text == "1"
            elif text:
                source[name] = text.replace(",", " ").split() if parameter.is_many else text
        values = self._values(source, parameters)
        if self.form.otherwise:
            chosen = [name for name, each in self._parameters.items() if each.is_keyword]
            values[self.form.otherwise] = not any(values.get(name) for name in chosen)
        return self._operation.given(**values)

    def _most(self, name: str) -> int:
        return _LONG if name in self.form.long else _VALUES if self._parameters[name].is_many else _LINE

    def _field(
        self, given: Parameters, name: str, default: str | None, choices: Sequence[tuple[str, str]] | None
    ) -> Data:
        parameter = self._parameters[name]
        about, is_number = parameter.about, parameter.kind in (int, float)
        if choices is None:
            choices = [(each, each) for each in about.choices]
        if parameter.kind is bool:
            kind, first = "switch", "0"
        elif choices:
            kind, first = "choice", choices[0][0]
        elif parameter.is_many or name in self.form.long:
            kind, first = "lines", ""
        else:
            kind, first = "number" if is_number and about.read is None else "text", ""
        value, held = given.given(parameter.key), default if default is not None else _default_of(parameter)
        return {
            "name": parameter.key,
            "label": self.form.fields[name],
            "kind": kind,
            "value": value if value is not None else held or first,
            "hint": parameter.help.replace("`", ""),
            "choices": choices,
            "low": int(about.low or 0),
            "high": int(about.high) if about.high is not None else (1 << 63) - 1,
            "most": self._most(name),
            "is_required": parameter.is_required,
        }


def _check(text: str, parameter: Parameter, label: str, most: int) -> None:
    if len(text) > most:
        raise InvalidArgument(f"{label} has {len(text):,} characters: at most {most:,} are allowed")
    if "\0" in text:
        raise InvalidArgument(f"{label} has a NUL character: leave it out")
    if parameter.is_required and not text:
        raise InvalidArgument(f"{label} is empty: fill it in")
    if parameter.kind is bool and text not in ("", "0", "1"):
        raise InvalidArgument(f"{label} is {quoted(text)}: it must be 0 or 1")


def _default_of(parameter: Parameter) -> str:
    if parameter.about.default is not None:
        return parameter.about.default
    has_none = parameter.is_required or not parameter.default or parameter.is_many or parameter.kind is bool
    return "" if has_none else str(parameter.default)


def toggles(action: Action, now: Permission, **names: str) -> list[ActionLink]:
    """Return two links to an action on a permission: to pause or resume sending, and reading."""
    found = []
    for permission, what in ((Permission.WRITE, "sending"), (Permission.READ, "reading")):
        label = f"Pause {what}" if now & permission else f"Resume {what}"
        found.append(action.on({"permission": permission_name(now ^ permission)}, label=label, **names))
    return found


def check_changes_allowed(console: Console) -> None:
    if not console.allow_changes:
        raise AccessDenied("this console only reads: start it with --allow-changes to use its actions")


class ActionLog:
    """Writes the line of the audit log about one request for a change. Used by one thread at a time."""

    def __init__(self, action: str, request: Request, private: Collection[str] = ()) -> None:
        self._action = action
        self._private = private
        self._user: str = request.state.visitor.user
        self._address = address_of(request.scope)
        self._names = {name: str(value) for name, value in request.path_params.items()}
        self.given: Mapping[str, str] = {}
        #: True once a part of it may have been done: its line then says how it ended.
        self.has_begun = False

    def done(self, said: str) -> None:
        self._write(logging.INFO, "done", said)

    def failed(self, said: str) -> None:
        """Log that it has begun and failed: a part of it may have been done."""
        self._write(logging.WARNING, "failed", said)

    def rejected(self, said: str) -> None:
        """Log that nothing was done, and why."""
        self._write(logging.WARNING, "rejected", said)

    def _write(self, level: int, result: str, said: str) -> None:
        given = {name[:_MAX_VALUE]: self._shown(name, value) for name, value in {**self._names, **self.given}.items()}
        _audit.log(
            level,
            "console: an action user=%r from=%s action=%s given=%r result=%s said=%r",
            self._user,
            self._address,
            self._action,
            given,
            result,
            said[:_MAX_SAID],
            # A rejected request can be repeated without end, so only changes that have begun are always written.
            extra=None if result == "rejected" else ALWAYS_WRITTEN,
        )

    def _shown(self, name: str, value: str) -> str:
        if name in self._private:
            return f"({len(value)} characters)"
        return value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}..."


#: All actions, by name.
ACTIONS = {form.action: Action(each, form) for each in operations_of(Sender) for form in each.forms}
