"""Actions made from the operations that `Admin` declares with a form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minimq import Admin
from minimq.operations.operation import Form, Given, Operation, Parameter, operations_of
from minimq_common.model import Permission, permission_name
from minimq_common.security.access_rule import Need
from minimq_console.action import Action, ActionPlan, ActionResult, ActionTarget, Progress
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import address

#: Part of the time of a page in which a plan counts.
_COUNTING = 0.6


def operations() -> list[Operation]:
    """Return all operations."""
    return operations_of(Admin)


def actions() -> dict[str, Action]:
    """Return the actions of all forms, by name."""
    return {form.action: _action(each, form) for each in operations() for form in each.forms}


def _action(operation: Operation, form: Form) -> Action:
    maker = _FormOf(operation, form)
    return Action(
        name=form.action,
        path=form.path,
        page=form.page,
        title=form.title,
        label=form.label,
        needs=maker.needs,
        fields=maker.fields,
        plan=maker.plan,
        run=maker.run,
    )


def toggles(action: Action, now: Permission, **names: str) -> list[ActionTarget]:
    """Return an action on a permission as two links, one that pauses or resumes sending, and one for reading."""
    found = []
    for permission, what in ((Permission.WRITE, "sending"), (Permission.READ, "reading")):
        label = f"Pause {what}" if now & permission else f"Resume {what}"
        found.append(action.on({"permission": permission_name(now ^ permission)}, label=label, **names))
    return found


class _FormOf:
    """The form of an operation, and what becomes of what is filled in."""

    def __init__(self, operation: Operation, form: Form) -> None:
        self._operation = operation
        self._form = form
        self._parameters = {each.name: each for each in operation.shown}

    def needs(self, given: Parameters) -> Sequence[Need]:
        """Return the rights that it takes, as far as what is filled in tells."""
        texts: dict[str, str | None] = {name: self._text(given, name) or None for name in self._form.fields}
        texts |= given.names
        missing = dict.fromkeys(each.name for each in self._parameters.values() if each.is_required)
        needs = self._operation.needs
        return needs(self._operation.given(**{**missing, **texts})) if needs is not None else ()

    def fields(self, visit: Visit) -> Sequence[FormField]:
        """Return the fields, with what they hold at first."""
        form, names = self._form, self._operation.given(**self._in_path(visit.parameters))
        defaults = self._asked(visit, form.defaults, names)
        choices = self._asked(visit, form.choices, names)
        return [
            _field(self._parameters[name], label, defaults.get(name), choices.get(name))
            for name, label in form.fields.items()
        ]

    def _asked(self, visit: Visit, ask: Callable[[Admin, Given], Mapping[str, Any]] | None, names: Given) -> Any:
        return visit.ask(self._form.label, lambda: ask(visit.observer.admin, names)).required() if ask else {}

    def plan(self, visit: Visit) -> ActionPlan:
        """Return what it will do."""
        given, admin = self._given(visit), visit.observer.admin
        given.patience_s = _COUNTING * visit.asking.left_s
        found = visit.ask(self._form.label, lambda: self._operation.planned(admin, given)).required()
        return ActionPlan(
            sentences=tuple(found.sentences),
            warnings=tuple(found.warnings),
            typed=getattr(given, self._form.typed) if self._form.typed else "",
            carried=found.carried,
        )

    def run(self, visit: Visit, progress: Progress) -> ActionResult:
        """Do it."""
        given, changer = self._given(visit), visit.observer.changer
        for each in self._operation.parameters:
            if each.about.progress == "line":
                setattr(given, each.name, progress)
            elif each.about.progress == "bar":
                setattr(given, each.name, lambda seen, total: progress(f"{seen:,} of {total:,} were looked at."))
        result = self._operation.run(changer, given)
        view = self._operation.view(changer, given, result, None)
        said = [line.strip() for line in view.lines if isinstance(line, str)]
        names = {name: value for name, value in vars(given).items() if isinstance(value, str)}
        return ActionResult(". ".join((*said, *view.notes)), address(self._form.to or self._form.page, names))

    def _in_path(self, given: Parameters) -> dict[str, Any]:
        known = self._parameters  # the page may be about something else than a parameter
        return {name: known[name].read(name, text) if name in known else text for name, text in given.names.items()}

    def _text(self, given: Parameters, name: str) -> str:
        return (given.given(self._parameters[name].key) or "").strip()

    def _given(self, visit: Visit) -> Given:
        values = self._in_path(visit.parameters)
        carried = [name for name, each in self._parameters.items() if each.key in visit.parameters.query]
        for name in {*self._form.fields, *carried}:
            parameter, label = self._parameters[name], self._form.fields.get(name, name)
            text = self._text(visit.parameters, name)
            if parameter.kind is bool:
                values[name] = text == "1"
            elif parameter.parts:
                values[name] = parameter.kind() if text == "1" else None
            elif parameter.is_many and text:
                values[name] = tuple(parameter.read(label, each) for each in text.replace(",", " ").split())
            elif text:
                values[name] = parameter.read(label, text)
        if self._form.otherwise:
            chosen = [name for name, each in self._parameters.items() if each.is_keyword]
            values[self._form.otherwise] = not any(values.get(name) for name in chosen)
        return self._operation.given(**values)


def _field(
    parameter: Parameter,
    label: str,
    default: str | None,
    choices: Sequence[tuple[str, str]] | None,
) -> FormField:
    about, number = parameter.about, parameter.kind in (int, float)
    if choices is None and about.choices:
        choices = [(each, each) for each in about.choices]
    is_switch = parameter.kind is bool or bool(parameter.parts)
    if default is None:
        default = about.default
    if default is None:
        default = "" if parameter.is_required or not parameter.default or parameter.is_many else str(parameter.default)
    return FormField(
        name=parameter.key,
        label=label,
        kind="switch"
        if is_switch
        else "choice"
        if choices
        else "lines"
        if parameter.is_many
        else "number"
        if number and about.read is None
        else "text",
        default="0" if is_switch else default or (choices[0][0] if choices else ""),
        hint=parameter.help.replace("`", ""),
        choices=choices or (),
        low=int(about.low or 0),
        high=int(about.high) if about.high is not None else (1 << 63) - 1,
        most=20_000 if parameter.is_many else 1_000,
        is_required=parameter.is_required,
    )


#: The actions of all forms, by name.
FORMS = actions()
