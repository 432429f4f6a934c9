"""To change the retention of a topic."""

from __future__ import annotations

from minimq_common.errors import InvalidArgument
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.retention_fields import RETENTION, RETENTION_BYTES, retention_of, say_retention
from minimq_console.actions.rights import manage_topic
from minimq_console.page import Visit
from minimq_console.texts import address, duration, listing, size


def plan(visit: Visit) -> ActionPlan:
    """Return how long messages are kept, before and after."""
    topic, admin = visit.parameters.name("topic"), visit.observer.admin
    described = visit.ask("the topic", lambda: admin.describe_topic(topic)).required()
    said = say_retention(visit.parameters)
    if not said:
        raise InvalidArgument("nothing is filled in: give a time, a size, or both")
    now = [
        f"On {each.broker_name} now: {duration(each.retention_s) if each.retention_s else 'as long as others'}, "
        f"{size(each.retention_bytes) if each.retention_bytes else 'no limit of its own'}."
        for each in described.settings
    ]
    return ActionPlan(
        sentences=(f"Changes topic {topic}.", *said, *now),
        warnings=(
            "Messages that the new rules pass cannot be read any more within minutes.",
            *(f"Broker {each.broker_name} is away, and is not changed." for each in described.away),
        ),
    )


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Change it."""
    topic, (seconds, count) = visit.parameters.name("topic"), retention_of(visit.parameters)
    away = visit.observer.changer.update_topic(topic, retention_s=seconds, retention_bytes=count)
    rest = f" It is not changed on {listing([each.broker_name for each in away])}, away now." if away else ""
    return ActionResult(f"Topic {topic} was changed.{rest}", address("/topics/{topic}", {"topic": topic}))


ACTION = Action(
    name="change-topic",
    path="/topics/{topic}/change",
    page="/topics/{topic}",
    title="Change topic {topic}",
    label="Change retention",
    needs=manage_topic,
    fields=lambda _: (RETENTION, RETENTION_BYTES),
    plan=plan,
    run=run,
)
