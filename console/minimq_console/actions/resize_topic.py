"""To give a topic another number of queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minimq.administration.descriptions import TopicDescription
from minimq_common.model import MAX_QUEUES
from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.reading_groups import reading_groups
from minimq_console.actions.rights import manage_topic
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.texts import address, listing

QUEUES = FormField(
    name="queues", label="Queues on each broker", kind="number", low=1, high=MAX_QUEUES, is_required=True
)
#: Seconds that groups have to read the queues that are taken away.
_DRAIN_S = 60.0


def fields(visit: Visit) -> Sequence[FormField]:
    """Return the field, with the number of queues that there is."""
    settings = _described(visit).settings
    return (replace(QUEUES, default=str(max((each.read_queues for each in settings), default=1))),)


def plan(visit: Visit) -> ActionPlan:
    """Return what becomes of the queues, and for whom it waits."""
    described, queues = _described(visit), QUEUES.number(visit.parameters)
    sentences = [
        f"On {each.broker_name} topic {described.topic} gets {count_of(queues, 'queue')} in place of "
        f"{each.read_queues:,}."
        for each in described.settings
        if (each.read_queues, each.write_queues) != (queues, queues)
    ]
    warnings = [f"Broker {each.broker_name} is away, and is not changed." for each in described.away]
    if not sentences:
        sentences = [
            f"Topic {described.topic} has {count_of(queues, 'queue')} on each broker already: nothing changes."
        ]
    elif any(each.read_queues > queues for each in described.settings):
        taken = [each for each in described.queues if each.queue.queue_id >= queues]
        stored = sum(each.messages for each in taken)
        sentences.append(
            f"Producers leave {count_of(len(taken), 'queue')} with {count_of(stored, 'message')} at once; consumers "
            f"do when every group has read them, in {_DRAIN_S:.0f} s at most."
        )
        if hidden := described.hidden_by(queues):
            warnings.append(
                f"{count_of(hidden, 'stored message')} there will be hidden from groups that begin later, and from "
                "replays. More queues show them again."
            )
        groups = reading_groups(visit, described.topic) or ()
        names = {each.queue for each in taken}
        for group in groups:
            unread = sum(queue.lag for queue in group.queues if queue.queue in names)
            if unread:
                warnings.append(f"Group {group.group} has {count_of(unread, 'unread message')} there.")
    else:
        sentences.append("Consumers see the new queues before producers use them. Keys may go to other queues then.")
    return ActionPlan(sentences=tuple(sentences), warnings=tuple(warnings))


def run(visit: Visit, progress: Progress) -> ActionResult:
    """Resize it."""
    topic, queues = visit.parameters.name("topic"), QUEUES.number(visit.parameters)
    away = visit.observer.changer.resize_topic(topic, queues, timeout_s=_DRAIN_S, progress=progress)
    rest = f" It is not changed on {listing([each.broker_name for each in away])}, away now." if away else ""
    said = f"Topic {topic} has {count_of(queues, 'queue')} on each broker.{rest}"
    return ActionResult(said, address("/topics/{topic}", {"topic": topic}))


def _described(visit: Visit) -> TopicDescription:
    topic = visit.parameters.name("topic")
    return visit.ask("the topic", lambda: visit.observer.admin.describe_topic(topic)).required()


ACTION = Action(
    name="resize-topic",
    path="/topics/{topic}/resize",
    page="/topics/{topic}",
    title="Resize topic {topic}",
    label="Resize",
    needs=manage_topic,
    fields=fields,
    plan=plan,
    run=run,
)
