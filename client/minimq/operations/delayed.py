"""Delayed messages: recall them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from minimq.administration.delayed_admin import DelayedAdmin
from minimq.administration.recall_handle import RecallHandle
from minimq.operations.operation import AsyncOperations, Form, Given, Operation, Param, Plan, View, asynchronous, listed
from minimq_common.errors import InvalidArgument
from minimq_common.moments import moment
from minimq_common.names import check_topic
from minimq_common.security.access_rule import Need, Resource, Verb

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.administration.recalls import RecallResult


def _handle(given: Given) -> RecallHandle:
    handle = RecallHandle.parse(given.handle)
    if getattr(given, "topic", handle.topic) != handle.topic:
        raise InvalidArgument(f"this recall handle is of topic {handle.topic}: open the form of that topic")
    return handle


def _write_topic(given: Given) -> Sequence[Need]:
    topic = getattr(given, "topic", None) or _handle(given).topic
    return (Need(Verb.WRITE, Resource.TOPIC, check_topic(topic)),)


def _plan_recall(_admin: Admin, given: Given) -> Plan:
    handle = _handle(given)
    return Plan(
        sentences=[
            f"Recalls the message of topic {handle.topic} that waits on {handle.broker_name} and is due at "
            f"{moment(handle.due_ms):%Y-%m-%d %H:%M:%SZ}.",
            "It is never delivered. If it is due before that, nothing happens.",
        ],
        warnings=["It cannot be taken back."],
    )


def _view_recall(_admin: Admin, given: Given, result: RecallResult, _plan: Plan | None) -> View:
    too_late = [] if result else ["error: too late: the message was due, and is in its queue"]
    row = {"topic": _handle(given).topic, "result": result.value}
    return View(json=row, lines=[result.value] if result else [], notes=too_late, is_complete=bool(result))


class DelayedOperations(DelayedAdmin):
    """Lists and recalls delayed messages; users have it as `Admin`."""

    @Operation(
        "delayed recall",
        example="delayed recall pu6yY5SlbG9nc6hicm9rZXItYc8AAAGb",
        needs=_write_topic,
        plan=_plan_recall,
        view=_view_recall,
        forms=[
            Form(
                action="recall",
                path="/delayed/{topic}/recall",
                page="/delayed/{topic}",
                title="Recall a delayed message of {topic}",
                label="Recall",
                fields={"handle": "Recall handle"},
            )
        ],
    )
    def recall(self, handle: Annotated[str | None, Param(metavar="HANDLE")]) -> RecallResult:
        """Recall a delayed message by its handle, so that it is never delivered.

        Args:
            handle: `recall_handle` of its receipt, or of `minimq delayed list`.

        Returns:
            Whether it was recalled; false if the message was due before that.

        Raises:
            InvalidArgument: it is no handle, or the message was not sent as recallable.
        """
        from minimq.administration.recalls import recall

        calls = self._masters.calls
        return calls.wait(lambda: recall(calls, handle, calls.timeout_s))


class AsyncDelayedOperations(AsyncOperations):
    """The same for `minimq.aio.Admin`."""

    recall = asynchronous(DelayedOperations.recall)
    delayed_totals = asynchronous(DelayedOperations.delayed_totals)
    delayed_messages = listed(DelayedOperations.delayed_messages)
