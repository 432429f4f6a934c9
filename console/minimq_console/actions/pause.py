"""To pause sending or reading: of one topic, or of all topics of one broker, by their permission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minimq_common.errors import InvalidArgument
from minimq_common.model import MASTER_ID, Permission
from minimq_console.action import Action, ActionPlan, ActionResult, ActionTarget, Progress
from minimq_console.actions.reading_groups import say_readers
from minimq_console.actions.rights import manage_cluster, manage_topic
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.texts import address, listing

PAUSED = FormField(
    name="paused",
    label="Paused",
    kind="choice",
    default="nothing",
    choices=(
        ("nothing", "nothing: sending and reading go on"),
        ("sending", "sending: consumers go on reading"),
        ("reading", "reading: producers go on sending"),
        ("both", "sending and reading"),
    ),
)
_PERMISSIONS: Mapping[str, Permission] = {
    "nothing": Permission.READ_WRITE,
    "sending": Permission.READ,
    "reading": Permission.WRITE,
    "both": Permission.NONE,
}
#: On the button that confirms it, by what is paused then.
_BUTTONS: Mapping[Permission, str] = {
    Permission.READ_WRITE: "Resume",
    Permission.READ: "Pause sending",
    Permission.WRITE: "Pause reading",
    Permission.NONE: "Pause both",
}
_PAUSED: Mapping[Permission, str] = {permission: name for name, permission in _PERMISSIONS.items()}


def permission_in(visit: Visit) -> Permission:
    """Return the permission that is chosen. Raises `InvalidArgument`."""
    return _PERMISSIONS[PAUSED.text(visit.parameters)]


def _what_happens(permission: Permission, what: str, elsewhere: str) -> list[str]:
    sends, reads = bool(permission & Permission.WRITE), bool(permission & Permission.READ)
    return [
        f"Producers send to {what}." if sends else f"Producers cannot send to {what}{elsewhere}.",
        f"Consumers read {what}." if reads else f"Consumers cannot read {what}, and what they have not read waits.",
    ]


def toggles(action: Action, now: Permission, **names: str) -> list[ActionTarget]:
    """Return the action as two links, one that pauses or resumes sending, and one for reading."""
    found = []
    for permission, what in ((Permission.WRITE, "sending"), (Permission.READ, "reading")):
        label = f"Pause {what}" if now & permission else f"Resume {what}"
        found.append(action.on({PAUSED.name: _PAUSED[now ^ permission]}, label=label, **names))
    return found


# ---- Of a topic -------------------------------------------------------------------------------------


def _permissions_of(visit: Visit) -> Mapping[str, Permission]:
    topic = visit.parameters.name("topic")
    described = visit.ask("the topic", lambda: visit.observer.admin.describe_topic(topic)).required()
    return {each.broker_name: each.permission for each in described.settings}


def topic_fields(visit: Visit) -> Sequence[FormField]:
    """Return the field, with what is paused now."""
    now = set(_permissions_of(visit).values())
    return (replace(PAUSED, default=_PAUSED[now.pop()]) if len(now) == 1 else PAUSED,)


def plan_topic(visit: Visit) -> ActionPlan:
    """Return what producers and consumers of the topic can do then."""
    topic, permission, now = visit.parameters.name("topic"), permission_in(visit), _permissions_of(visit)
    if all(each is permission for each in now.values()):
        raise InvalidArgument(f"that is so already on {listing(list(now))}: choose something else")
    sentences = _what_happens(permission, f"topic {topic}", ": their sends fail after all tries")
    if not permission & Permission.READ:
        sentences.append(say_readers(visit, topic))
    sentences.append(f"It holds on {listing(list(now))}, until somebody changes it.")
    return ActionPlan(sentences=tuple(sentences), button=_BUTTONS[permission])


def run_topic(visit: Visit, _progress: Progress) -> ActionResult:
    """Set the permission of the topic."""
    topic, paused = visit.parameters.name("topic"), PAUSED.text(visit.parameters)
    away = visit.observer.changer.update_topic(topic, permission=permission_in(visit))
    rest = f" It is not changed on {listing([each.broker_name for each in away])}, away now." if away else ""
    return ActionResult(f"Paused of topic {topic}: {paused}.{rest}", address("/topics/{topic}", {"topic": topic}))


# ---- Of a broker ------------------------------------------------------------------------------------


def _permission_of(visit: Visit) -> Permission:
    name = visit.parameters.name("broker")
    for each in visit.ask("the brokers", visit.observer.admin.broker_status).required():
        if (each.broker_name, each.broker_id) == (name, MASTER_ID) and each.report is not None:
            return each.report.permission
    raise InvalidArgument(f"there is no broker {name} with a master that answers: the page of the cluster shows them")


def broker_fields(visit: Visit) -> Sequence[FormField]:
    """Return the field, with what is paused now."""
    return (replace(PAUSED, default=_PAUSED[_permission_of(visit)]),)


def plan_broker(visit: Visit) -> ActionPlan:
    """Return what producers and consumers can do at the broker then."""
    name, permission = visit.parameters.name("broker"), permission_in(visit)
    if permission is _permission_of(visit):
        raise InvalidArgument(f"that is so already on {name}: choose something else")
    sentences = _what_happens(permission, f"all topics on {name}", ", and send to other brokers of a topic")
    sentences.append("It holds until somebody changes it, also when the broker restarts.")
    return ActionPlan(sentences=tuple(sentences), button=_BUTTONS[permission])


def run_broker(visit: Visit, _progress: Progress) -> ActionResult:
    """Set the permission of the broker."""
    name, paused = visit.parameters.name("broker"), PAUSED.text(visit.parameters)
    visit.observer.changer.set_broker_permission(name, permission_in(visit))
    return ActionResult(f"Paused on broker {name}: {paused}.", "/")


TOPIC = Action(
    name="pause-topic",
    path="/topics/{topic}/pause",
    page="/topics/{topic}",
    title="Pause sending to topic {topic}, or reading",
    label="Pause",
    needs=manage_topic,
    fields=topic_fields,
    plan=plan_topic,
    run=run_topic,
)
BROKER = Action(
    name="pause-broker",
    path="/brokers/{broker}/pause",
    page="/",
    title="Pause sending to broker {broker}, or reading",
    label="Pause",
    needs=manage_cluster,
    fields=broker_fields,
    plan=plan_broker,
    run=run_broker,
)
