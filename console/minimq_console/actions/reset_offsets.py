"""To move a group to other offsets in a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from minimq import MessageQueue
from minimq.administration.group_descriptions import GroupDescription
from minimq_common.errors import InvalidArgument
from minimq_common.moments import timestamp_ms
from minimq_common.names import check_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.rights import manage_group
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import address, listing

TOPIC = FormField(name="topic", label="Topic", kind="choice", is_required=True)
TO = FormField(
    name="to",
    label="Go on at",
    kind="choice",
    default="earliest",
    choices=(
        ("earliest", "the earliest message"),
        ("latest", "the end: only messages from now on"),
        ("time", "a time, given below"),
        ("offset", "an offset, given below"),
    ),
)
TIME = FormField(
    name="time", label="Time", most=60, hint="Such as 2026-01-31T08:00Z, or -2h: the first message stored since."
)
OFFSET = FormField(name="offset", label="Offset", kind="number", hint="One that all chosen queues store.")
QUEUE = FormField(name="queue", label="Only this queue", most=300, hint="As BROKER:ID; all queues if it is empty.")
FORCE = FormField(
    name="force",
    label="Also while members are connected",
    kind="switch",
    default="0",
    hint="They lose the queues and get them back at the new offset; what they have in flight cannot be committed.",
)
#: What is carried from the description to the end: a time such as -2h is another one later.
MOMENT = FormField(name="moment", label="moment", most=40)
#: Queues that a description lists.
_MOST_QUEUES = 20


def needs(given: Parameters) -> Sequence[Need]:
    """Return the rights to manage the group, and to read the topic that is chosen."""
    topic = TOPIC.given(given).strip()
    return (*manage_group(given), *((Need(Verb.READ, Resource.TOPIC, check_topic(topic)),) if topic else ()))


def fields(visit: Visit) -> Sequence[FormField]:
    """Return the fields, with the topics of the group."""
    topics = sorted({queue.queue.topic for queue in _group(visit).queues})
    if not topics:
        raise InvalidArgument(f"group {visit.parameters.name('group')} reads no topic yet: there is nothing to reset")
    topic = replace(TOPIC, choices=[(each, each) for each in topics], default=topics[0])
    return (topic, TO, TIME, OFFSET, QUEUE, FORCE)


def plan(visit: Visit) -> ActionPlan:
    """Return how far each queue moves, and who reads it now."""
    given, admin = visit.parameters, visit.observer.admin
    group, topic, target = given.name("group"), TOPIC.given(given), _target(visit)
    queues, force = _queues(given, topic), FORCE.flag(given)
    moves = visit.ask(
        "the new offsets",
        lambda: admin.reset_offsets(group, topic, target, queues=queues, force=force, dry_run=True),
    )
    described = _group(visit)
    now = {each.queue: each.committed_offset for each in described.queues}
    new = moves.required()
    said = [f"Group {group} goes on in topic {topic} at {_words(given)}, in {count_of(len(new), 'queue')}."]
    said += _distances(new, now)
    warnings = []
    if described.members:
        names = listing([each.client_id for each in described.members])
        warnings.append(
            f"{count_of(len(described.members), 'member')} connected: {names}. They go on at the new offsets."
        )
    else:
        said.append("No member is connected.")
    warnings += [f"Broker {each.broker_name} is away: its queues do not move." for each in described.away]
    carried = {MOMENT.name: str(target)} if TO.given(given) == "time" else {}
    return ActionPlan(sentences=tuple(said), warnings=tuple(warnings), typed=group, carried=carried)


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Move it."""
    given = visit.parameters
    group, topic = given.name("group"), TOPIC.given(given)
    target = MOMENT.text(given) or _target(visit)
    new = visit.observer.changer.reset_offsets(
        group, topic, target, queues=_queues(given, topic), force=FORCE.flag(given)
    )
    said = f"Group {group} goes on in topic {topic} at {_words(given)}, in {count_of(len(new), 'queue')}."
    return ActionResult(said, address("/groups/{group}", {"group": group}))


def _group(visit: Visit) -> GroupDescription:
    name = visit.parameters.name("group")
    return visit.ask("the group", lambda: visit.observer.admin.describe_group(name)).required()


def _target(visit: Visit) -> int | str:
    given, to = visit.parameters, TO.text(visit.parameters)
    if to == "offset":
        return OFFSET.number(given)
    if to == "time":
        return f"{timestamp_ms(TIME.text(given), visit.now.timestamp(), TIME.label)}ms"
    return to


def _queues(given: Parameters, topic: str) -> Sequence[MessageQueue] | None:
    text = QUEUE.text(given)
    if not text:
        return None
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdecimal() or len(number) > 6:
        raise InvalidArgument(f"{QUEUE.label} is {text!r}: give BROKER:ID, such as broker-a:0")
    return (MessageQueue(topic, broker, int(number)),)


def _words(given: Parameters) -> str:
    to = TO.given(given)
    if to == "time":
        return f"the first message stored since {TIME.text(given)}"
    return (
        f"offset {OFFSET.number(given):,}"
        if to == "offset"
        else {"earliest": "the earliest message"}.get(to, "the end")
    )


def _distances(new: Mapping[MessageQueue, int], now: Mapping[MessageQueue, int | None]) -> list[str]:
    moves = {queue: offset - (now.get(queue) or 0) for queue, offset in new.items() if now.get(queue) is not None}
    back, ahead = (-sum(each for each in moves.values() if each < 0), sum(each for each in moves.values() if each > 0))
    said = []
    if back:
        said.append(f"{count_of(back, 'message')} will be delivered again.")
    if ahead:
        said.append(f"{count_of(ahead, 'message')} will be passed over without being delivered.")
    if not back and not ahead:
        said.append("No queue moves: all are there already.")
    changed = sorted((queue for queue in moves if moves[queue]), key=lambda queue: (-abs(moves[queue]), queue))
    for queue in changed[:_MOST_QUEUES]:
        way = "back" if moves[queue] < 0 else "ahead"
        said.append(
            f"{queue.broker_name}:{queue.queue_id} from {now[queue]:,} to {new[queue]:,}: {abs(moves[queue]):,} {way}."
        )
    if len(changed) > _MOST_QUEUES:
        said.append(f"{len(changed) - _MOST_QUEUES:,} further queues move less far.")
    fresh = len(new) - len(moves)
    if fresh:
        said.append(f"In {count_of(fresh, 'queue')} the group has not begun, and will begin there.")
    return said


ACTION = Action(
    name="reset-offsets",
    path="/groups/{group}/reset",
    page="/groups/{group}",
    title="Reset the offsets of group {group}",
    label="Reset offsets",
    needs=needs,
    fields=fields,
    plan=plan,
    run=run,
)
