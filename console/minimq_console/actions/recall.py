"""To recall a delayed message."""

from __future__ import annotations

from minimq import RecallResult
from minimq.administration.recall_handle import RecallHandle
from minimq_common.errors import InvalidArgument
from minimq_common.moments import moment
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.rights import write_topic
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import address, instant

HANDLE = FormField(
    name="handle", label="Recall handle", most=1_000, is_required=True, hint="The text in the receipt of the message."
)


def plan(visit: Visit) -> ActionPlan:
    """Return which message is recalled."""
    handle = handle_of(visit.parameters)
    return ActionPlan(
        sentences=(
            f"Recalls the message of topic {handle.topic} that waits on {handle.broker_name} and is due at "
            f"{instant(moment(handle.due_ms))}.",
            "It is never delivered. If it is due before that, nothing happens.",
        ),
        warnings=("It cannot be taken back.",),
    )


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Recall it."""
    handle = handle_of(visit.parameters)
    result = visit.observer.changer.recall(HANDLE.text(visit.parameters))
    if not result:
        raise InvalidArgument("the message is not recalled: it was due before that, and is in its queue")
    again = " before" if result is RecallResult.ALREADY_RECALLED else ""
    said = f"The message of topic {handle.topic} was recalled{again}."
    return ActionResult(said, address("/delayed/{topic}", {"topic": handle.topic}))


def handle_of(given: Parameters) -> RecallHandle:
    """Return the handle that is filled in. Raises `InvalidArgument` if it is none, or of another topic."""
    handle = RecallHandle.parse(HANDLE.text(given))
    if handle.topic != given.name("topic"):
        raise InvalidArgument(f"this recall handle is of topic {handle.topic}: open the form of that topic")
    return handle


ACTION = Action(
    name="recall",
    path="/delayed/{topic}/recall",
    page="/delayed/{topic}",
    title="Recall a delayed message of {topic}",
    label="Recall",
    needs=write_topic,
    fields=lambda _: (HANDLE,),
    plan=plan,
    run=run,
)
