"""To send one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from minimq import Message, Producer
from minimq.administration.descriptions import TopicDescription
from minimq.operations.words import listing
from minimq.sending.due_times import MAX_DELAY_S
from minimq_common.batch.header import MAX_TAG
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.words import count_of, seconds_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.body_text import preview
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import address, duration

#: Characters of a body.
MOST_BODY = 200_000
#: Seconds for all tries.
_SEND_S = 15.0

BODY = FormField(name="body", label="Body", kind="lines", most=MOST_BODY)
FORM = FormField(
    name="form",
    label="The body is",
    kind="choice",
    default="text",
    choices=(("text", "text, sent as UTF-8"), ("hex", "hexadecimal digits")),
)
KEY = FormField(name="key", label="Key", most=1_000, hint="In a compacted topic, an empty body deletes the key.")
TAG = FormField(name="tag", label="Tag", most=MAX_TAG)
PROPERTIES = FormField(
    name="properties", label="Properties", kind="lines", most=20_000, hint="One in each line, as NAME=VALUE."
)
GROUP = FormField(name="message_group", label="Message group", most=64, hint="A FIFO topic takes one.")
DELAY = FormField(
    name="delay", label="Deliver after", most=40, hint="A time such as 30s or 2h; at once if it is empty."
)
FIELDS = (BODY, FORM, KEY, TAG, PROPERTIES, GROUP, DELAY)


def needs(given: Parameters) -> Sequence[Need]:
    """Return the right to send to the topic in the path. Raises `InvalidArgument` if that is none."""
    return (Need(Verb.WRITE, Resource.TOPIC, check_topic(given.name("topic"))),)


def fields(visit: Visit) -> Sequence[FormField]:
    """Return the fields, with a message group if the topic takes one."""
    is_fifo = any(each.fifo for each in _described(visit).settings)
    return FIELDS if is_fifo else tuple(field for field in FIELDS if field is not GROUP)


def plan(visit: Visit) -> ActionPlan:
    """Return what is stored, and where."""
    message, described = _message_for(visit), _described(visit)
    brokers = listing([each.broker_name for each in described.settings])
    key = f", key {message.keys[0]!r}" if message.keys else ""
    tag = f", tag {message.tag!r}" if message.tag else ""
    said = [
        f"Sends one message of {count_of(len(message.body), 'byte')}{key}{tag} to topic {message.topic}, on {brokers}."
    ]
    if message.deliver_after_s is not None:
        said.append(f"It is delivered after {duration(message.deliver_after_s)}; until then it can be recalled.")
    said += [f"Property {name!r} is {value!r}." for name, value in message.properties.items()]
    said.append(
        "It is a tombstone, and deletes its key."
        if message.is_tombstone
        else f"The body begins: {preview(message.body)}"
        if message.body
        else "The body is empty."
    )
    return ActionPlan(sentences=tuple(said))


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Send it."""
    message = _message_for(visit)
    with Producer(visit.observer.cluster, send_timeout_s=_SEND_S) as producer:
        receipt = producer.send(message)
    queue = receipt.queue
    names = {"topic": queue.topic, "broker": queue.broker_name, "queue": str(queue.queue_id)}
    if receipt.queue_offset < 0:
        said = f"Message {receipt.message_id} waits on {queue.broker_name} until it is due."
        return ActionResult(said, address("/delayed/{topic}", {"topic": queue.topic}))
    said = f"Message {receipt.message_id} was stored as {queue}@{receipt.queue_offset}."
    to = address("/topics/{topic}/messages/{broker}/{queue}/{offset}", {**names, "offset": str(receipt.queue_offset)})
    return ActionResult(said, to)


def _message_for(visit: Visit) -> Message:
    message = message_of(visit.parameters)
    is_compacted = any(each.compaction for each in _described(visit).settings)
    return structs.replace(message, is_tombstone=is_compacted and not message.body)


def message_of(given: Parameters) -> Message:
    """Return the message that is filled in. Raises `InvalidArgument`."""
    body, key, delay = BODY.text(given), KEY.text(given), DELAY.text(given)
    delay_s = seconds_of(delay) if delay else None
    if delay and (delay_s is None or not 0 < delay_s <= MAX_DELAY_S):
        raise InvalidArgument(f"{DELAY.label} is {delay!r}: give a time such as 30s or 2h, at most {MAX_DELAY_S:,} s")
    message = Message(
        check_name(given),
        _bytes_of(body) if FORM.text(given) == "hex" else body.encode(),
        TAG.text(given) or None,
        (key,) if key else (),
        _properties_of(PROPERTIES.text(given)),
        GROUP.text(given) or None,
        delay_s,
        recallable=delay_s is not None,
    )
    check_message(message, MOST_BODY * 4)
    return message


def check_name(given: Parameters) -> str:
    """Return the topic in the path. Raises `InvalidArgument` for one of minimq itself."""
    name = given.name("topic")
    if name.startswith("%"):
        raise InvalidArgument(f"messages are not sent to {name} by hand: topics that begin with % are minimq's own")
    return name


def _bytes_of(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise InvalidArgument(
            f"{BODY.label} has something besides pairs of hexadecimal digits, such as 0a ff"
        ) from None


def _properties_of(lines: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            raise InvalidArgument(f"{PROPERTIES.label} has the line {line[:60]!r}: write NAME=VALUE, each name once")
        found[name.strip()] = value.strip()
    return found


def _described(visit: Visit) -> TopicDescription:
    topic = check_name(visit.parameters)
    return visit.ask("the topic", lambda: visit.observer.admin.describe_topic(topic)).required()


ACTION = Action(
    name="produce",
    path="/topics/{topic}/produce",
    page="/topics/{topic}",
    title="Send a message to topic {topic}",
    label="Send a message",
    needs=needs,
    fields=fields,
    plan=plan,
    run=run,
    private=frozenset({BODY.name, PROPERTIES.name}),
)
