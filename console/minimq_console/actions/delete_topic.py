"""To delete a topic."""

from __future__ import annotations

from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.reading_groups import reading_groups, say_readers
from minimq_console.actions.rights import manage_topic
from minimq_console.page import Visit
from minimq_console.texts import listing


def plan(visit: Visit) -> ActionPlan:
    """Return how many messages go, and who reads them."""
    topic, admin = visit.parameters.name("topic"), visit.observer.admin
    described = visit.ask("the topic", lambda: admin.describe_topic(topic)).required()
    brokers = listing([each.broker_name for each in described.settings])
    members = sum(len(group.members) for group in reading_groups(visit, topic) or ())
    warnings = ["Its messages are lost, also those that were not read. It cannot be taken back."]
    if members:
        warnings.append(f"{count_of(members, 'member')} of these groups are connected.")
    warnings += [
        f"Broker {each.broker_name} carries it and is away: it is refused until that is back."
        for each in described.away
    ]
    return ActionPlan(
        sentences=(
            f"Deletes topic {topic} with {count_of(described.messages, 'message')} on {brokers}.",
            say_readers(visit, topic),
        ),
        warnings=tuple(warnings),
        typed=topic,
    )


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Delete it."""
    topic = visit.parameters.name("topic")
    visit.observer.changer.delete_topic(topic)
    return ActionResult(f"Topic {topic} was deleted.", "/topics")


ACTION = Action(
    name="delete-topic",
    path="/topics/{topic}/delete",
    page="/topics/{topic}",
    title="Delete topic {topic}",
    label="Delete",
    needs=manage_topic,
    plan=plan,
    run=run,
)
