"""To create a topic."""

from __future__ import annotations

from collections.abc import Sequence

from minimq.administration.compaction import Compaction
from minimq_common.model import MAX_QUEUES
from minimq_common.names import MAX_TOPIC, check_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.retention_fields import RETENTION, RETENTION_BYTES, retention_of, say_retention
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import address, listing

NAME = FormField(
    name="name", label="Name", most=MAX_TOPIC, is_required=True, hint="Letters, digits and the characters _ - ."
)
QUEUES = FormField(
    name="queues", label="Queues on each broker", kind="number", default="8", low=1, high=MAX_QUEUES, is_required=True
)
KIND = FormField(
    name="kind",
    label="Kind",
    kind="choice",
    default="plain",
    choices=(
        ("plain", "plain"),
        ("fifo", "FIFO: messages of one message group are consumed in their order"),
        ("compacted", "compacted: of each key the latest message stays"),
    ),
    hint="It cannot be changed later.",
)
FIELDS = (NAME, QUEUES, KIND, RETENTION, RETENTION_BYTES)


def needs(given: Parameters) -> Sequence[Need]:
    """Return the right to manage the topic that is named; nothing before there is a name."""
    name = NAME.given(given).strip()
    return (Need(Verb.MANAGE, Resource.TOPIC, check_topic(name)),) if name else ()


def plan(visit: Visit) -> ActionPlan:
    """Return on which brokers it comes."""
    given, admin = visit.parameters, visit.observer.admin
    name, queues = check_topic(NAME.text(given)), QUEUES.number(given)
    brokers = visit.ask("the brokers", admin.cluster)
    away = visit.ask("the brokers that are away", admin.away_brokers)
    names = sorted({each.broker_name for each in brokers.required() if each.master is not None})
    kind = KIND.text(given)
    adjective = "" if kind == "plain" else f"{'FIFO' if kind == 'fifo' else kind} "
    return ActionPlan(
        sentences=(
            f"Creates the {adjective}topic {name} with {count_of(queues, 'queue')} on {listing(names)}, "
            f"{count_of(queues * len(names), 'queue')} in all.",
            *say_retention(given),
        ),
        warnings=tuple(f"Broker {each.broker_name} is away and does not get it." for each in away.or_else([])),
    )


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Create it."""
    given = visit.parameters
    name, kind = NAME.text(given), KIND.text(given)
    retention_s, retention_bytes = retention_of(given)
    visit.observer.changer.create_topic(
        name,
        QUEUES.number(given),
        fifo=kind == "fifo",
        compaction=Compaction() if kind == "compacted" else None,
        retention_s=retention_s or 0.0,
        retention_bytes=retention_bytes or 0,
    )
    return ActionResult(f"Topic {name} was created.", address("/topics/{topic}", {"topic": name}))


ACTION = Action(
    name="create-topic",
    path="/create-topic",
    page="/topics",
    title="Create a topic",
    label="Create a topic",
    needs=needs,
    fields=lambda _: FIELDS,
    plan=plan,
    run=run,
)
