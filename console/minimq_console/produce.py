"""Sends one message by hand: an operation of the console alone, since commands read messages from files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Unpack

from msgspec import structs

from minimq import Admin, Cluster, Message, Producer, SendReceipt
from minimq.admin.descriptions import TopicDescription
from minimq.admin.message_params import message_params
from minimq.admin.operation import Arguments, Form, Operation
from minimq.admin.texts import duration_of, listing
from minimq.admin.values import properties_of
from minimq.admin.views import Plan, PlanRow, View
from minimq.features.delayed.due_times import due_time
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument
from minimq_common.model import FIELDS, MessageFields
from minimq_common.text_units import count_of
from minimq_console.bodies import preview
from minimq_console.parameters import address

#: Maximum bytes of a body.
_MAX_BODY = 800_000
#: Timeout in seconds, with all retries.
_SEND_S = 15.0
#: What a browser or a user may add around a line of a form.
_BLANKS = " \t\r"


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
    body = given.body.encode()
    fields = {name: value for name in FIELDS if (value := getattr(given, name, None))}
    message = Message(
        given.topic,
        body,
        **{
            **fields,
            "keys": (given.key,) if given.key else (),
            "properties": _properties_of(given.property_lines),
            "recallable": "deliver_after_s" in fields,
        },
    )
    check_message(message, _MAX_BODY)
    due_time(message, 0.0, time.time())  # raises if it is invalid
    is_compacted = any(each.compaction for each in described.settings)
    return structs.replace(message, is_tombstone=is_compacted and not body), described


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
    own = {"key": next(iter(message.keys), None), **message.properties}
    rows += [PlanRow(name, None, value) for name, value in own.items() if value is not None]
    for name, about in FIELDS.items():
        if about.label and (value := getattr(message, name)) is not None:
            text = duration_of(value) if about.kind == "duration" else str(value)
            rows.append(PlanRow(about.label, None, text))
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
        abouts=message_params(of_form=True),
        forms=[
            Form(
                "produce",
                "/topics/{topic}",
                "Send a message to topic {topic}",
                "Send a message",
                fields={
                    "body": "Body",
                    "key": "Key",
                    "property_lines": "Properties",
                    **{name: each.label for name, each in FIELDS.items() if each.label},
                },
                long=frozenset({"body", "property_lines"}),
                defaults=_hide_group,
            )
        ],
    )
    def send_message(
        self, topic: str, *, body: str = "", key: str = "", property_lines: str = "", **fields: Unpack[MessageFields]
    ) -> SendReceipt:
        """Send one message; one with a delay can be recalled until it is due.

        Args:
            topic: to this topic.
            body: as text, sent in UTF-8.
            key: in a compacted topic, an empty body deletes the key.
            property_lines: one in each line, as NAME=VALUE.
            **fields: the other fields of the message.
        """
        given = Arguments(topic=topic, body=body, key=key, property_lines=property_lines, **fields)
        message, _ = _message_of(self, given)
        with Producer(self._sends_to, send_timeout_s=_SEND_S) as producer:
            return producer.send(message)
