"""Sends one message by hand: an operation of the console alone, since commands read messages from files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import structs

from minimq import Admin, Cluster, Message, Producer, SendReceipt
from minimq.admin.descriptions import TopicDescription
from minimq.admin.operation import Arguments, Form, Operation, Param
from minimq.admin.texts import duration_of, listing
from minimq.admin.values import properties_of
from minimq.admin.views import Plan, PlanRow, View
from minimq.features.delayed.due_times import MAX_DELAY_S
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument
from minimq_common.properties import check_message_group
from minimq_common.text_units import count_of, seconds_of
from minimq_console.bodies import preview
from minimq_console.parameters import address

#: Maximum bytes of a body.
_MAX_BODY = 800_000
#: Timeout in seconds, with all retries.
_SEND_S = 15.0
#: The formats of a body: the choices of the form, and of the operation.
_WRITTEN = (("text", "text, sent as UTF-8"), ("hex", "hexadecimal digits"))
#: What a browser or a user may add around a line of a form.
_BLANKS = " \t\r"
_AS = Param(choices={name: name for name, _ in _WRITTEN})


def _delay(what: str, text: str) -> float:
    found = seconds_of(text)
    if found is None or not 0 < found <= MAX_DELAY_S:
        raise InvalidArgument(f"{what} is {text!r}: give a time such as 30s or 2h, at most {MAX_DELAY_S:,} s")
    return found


def _described(admin: Admin, given: Arguments) -> TopicDescription:
    if given.topic.startswith("%"):
        raise InvalidArgument(
            f"messages are not sent to {given.topic} by hand: topics that begin with % are minimq's own"
        )
    return admin.describe_topic(given.topic)


def _hide_group(admin: Admin, given: Arguments) -> Mapping[str, str | None]:
    return {} if any(each.fifo for each in _described(admin, given).settings) else {"message_group": None}


def _message_of(admin: Admin, given: Arguments) -> tuple[Message, TopicDescription]:
    described = _described(admin, given)
    body = _bytes_of(given.body) if given.form == "hex" else given.body.encode()
    message = Message(
        given.topic,
        body,
        given.tag or None,
        (given.key,) if given.key else (),
        _properties_of(given.properties),
        given.message_group or None,
        given.delay_s,
        recallable=given.delay_s is not None,
    )
    check_message(message, _MAX_BODY)
    if message.message_group is not None:
        check_message_group(message.message_group)
    is_compacted = any(each.compaction for each in described.settings)
    return structs.replace(message, is_tombstone=is_compacted and not body), described


def _bytes_of(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidArgument("Body has something besides pairs of hexadecimal digits, such as 0a ff") from None


def _properties_of(lines: str) -> Mapping[str, str]:
    # Not `splitlines` and a plain `strip`: a value may contain other line ends, such as U+2028.
    found = (line.strip(_BLANKS) for line in lines.split("\n"))
    named = ("=".join(part.strip(_BLANKS) for part in line.split("=", 1)) for line in found if line)
    return properties_of("Properties: line", named)


def _plan(admin: Admin, given: Arguments) -> Plan:
    message, described = _message_of(admin, given)
    brokers = listing([each.broker_name for each in described.settings])
    note = "a tombstone: deletes its key" if message.is_tombstone else preview(message.body)
    rows = [PlanRow(f"message to {message.topic} on {brokers}", None, count_of(len(message.body), "byte"), note)]
    own = {"key": next(iter(message.keys), None), "tag": message.tag, **message.properties}
    rows += [PlanRow(name, None, value) for name, value in own.items() if value is not None]
    if message.deliver_after_s is not None:
        rows.append(
            PlanRow("delivery", None, f"in {duration_of(message.deliver_after_s)}", "can be recalled until then")
        )
    return Plan(rows=rows)


def _view(_admin: Admin, _given: Arguments, receipt: SendReceipt, plan: Plan) -> View:
    queue, what = receipt.queue, f"message {receipt.message_id}"
    if receipt.queue_offset < 0:
        row = PlanRow(what, None, f"waits on {queue.broker_name}", "until it is due")
        return plan.view([row], to=address("/delayed/{topic}", {"topic": queue.topic}))
    place = {"topic": queue.topic, "broker": queue.broker_name, "queue": str(queue.queue_id)}
    place["offset"] = str(receipt.queue_offset)
    row = PlanRow(what, None, f"{queue}@{receipt.queue_offset}")
    return plan.view([row], to=address("/topics/{topic}/messages/{broker}/{queue}/{offset}", place))


class Sender(Admin):
    """An `Admin` that sends messages, too."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        super().__init__(cluster, timeout_s=timeout_s)
        self._sends_to = cluster

    @Operation(
        "message send",
        example="message send orders",
        plan=_plan,
        view=_view,
        forms=[
            Form(
                "produce",
                "/topics/{topic}",
                "Send a message to topic {topic}",
                "Send a message",
                fields={
                    "body": "Body",
                    "form": "The body is",
                    "key": "Key",
                    "tag": "Tag",
                    "properties": "Properties",
                    "message_group": "Message group",
                    "delay_s": "Deliver after",
                },
                long=frozenset({"body", "properties"}),
                defaults=_hide_group,
                choices=lambda *_: {"form": _WRITTEN},
            )
        ],
    )
    def send_message(
        self,
        topic: str,
        *,
        body: str = "",
        form: Annotated[str, _AS] = "text",
        key: str = "",
        tag: str = "",
        properties: str = "",
        message_group: str = "",
        delay_s: Annotated[float | None, Param(flag="--delay", read=_delay)] = None,
    ) -> SendReceipt:
        """Send one message.

        Args:
            topic: to this topic.
            body: as text or in digits.
            form: whether the body is text or hexadecimal digits.
            key: in a compacted topic, an empty body deletes the key.
            tag: consumers may filter by it.
            properties: one in each line, as NAME=VALUE.
            message_group: a FIFO topic takes one.
            delay_s: a time such as 30s or 2h; at once if it is empty.
        """
        given = Arguments(**{name: value for name, value in locals().items() if name != "self"})
        message, _ = _message_of(self, given)
        with Producer(self._sends_to, send_timeout_s=_SEND_S) as producer:
            return producer.send(message)
