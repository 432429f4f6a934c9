"""The operation that creates topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from minimq.admin import values
from minimq.admin.descriptions import Compaction, check_compaction, compaction_to_wire
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import Arguments, Form, Operation, Operations, Param
from minimq.admin.texts import duration_of, size_of
from minimq.admin.views import Plan, PlanRow, offline_plan_rows
from minimq.arguments import check_between, check_permission, waiting_s
from minimq_common.errors import InvalidArgument, TopicExists
from minimq_common.model import MAX_QUEUES, PERMISSIONS, Permission, permission_name
from minimq_common.names import check_topic
from minimq_common.text_units import count_of
from minimq_common.wire.convert import permission_from_wire
from minimq_common.wire.protocol_bounds import MAX_NUMBER, MAX_RETENTION_MS
from minimq_proto.v1 import broker_pb2

#: Responses that contain a topic.
_WithTopic = broker_pb2.CreateTopicResponse | broker_pb2.DescribeTopicResponse
#: Permissions of a new topic: all but "none".
_PERMISSIONS: Final = {name: value for name, value in PERMISSIONS.items() if value}


def retention_text(seconds: float) -> str:
    return duration_of(seconds) if seconds else "that of the broker"


def size_limit_text(size: int) -> str:
    return size_of(size) if size else "no limit"


def _settings_text(topic: broker_pb2.Topic) -> str:
    """Return the settings of a topic on one broker: "8 queues, read-write"."""
    read, write = topic.read_queues, topic.write_queues
    queues = count_of(read, "queue") if read == write else f"{read} read and {count_of(write, 'write queue')}"
    rest = [permission_name(permission_from_wire(topic.permission))]
    rest += ["FIFO"] if topic.fifo else []
    if topic.HasField("compaction"):
        rest.append(f"compacted with {topic.compaction.key_queues} queues on all")
    rest += [f"kept for {duration_of(topic.retention_ms / 1000)}"] if topic.retention_ms else []
    rest += [f"at most {size_of(topic.retention_bytes)}"] if topic.retention_bytes else []
    return ", ".join((queues, *rest))


def _plan_creation(admin: TopicCreation, given: Arguments) -> Plan:
    wanted, present, absent = admin._to_create(given)
    carriers = {each.broker_name for each in admin._masters.offline(given.name)}
    gone = () if given.brokers else admin._masters.offline()
    offline = [each for each in gone if each.broker_name not in carriers]
    rows = [PlanRow(f"{given.name} on {broker}", None, _settings_text(wanted)) for broker in absent]
    for broker, answer in present.items():
        text = _settings_text(answer.topic)
        rows.append(PlanRow(f"{given.name} on {broker}", text, text, "exists already"))
    rows.sort(key=lambda row: row.what)
    return Plan(
        rows=[*rows, *offline_plan_rows(given.name, offline, "topic not created there")], is_complete=not offline
    )


class TopicCreation(Operations):
    """Creates topics; a part of `Admin`."""

    @Operation(
        "topic create",
        example="topic create orders --queues 16",
        plan=_plan_creation,
        forms=[
            Form(
                "create-topic",
                "/topics",
                "Create a topic",
                "Create a topic",
                path="/create-topic",
                to="/topics/{name}",
                fields={
                    "name": "Name",
                    "queues": "Queues on each broker",
                    "fifo": "FIFO",
                    "compaction": "Compacted",
                    "retention_s": "Keep messages for",
                    "retention_bytes": "Keep at most, on each broker",
                },
            )
        ],
    )
    def create_topic(
        self,
        name: Annotated[str, Param(read=values.new_topic, metavar="TOPIC")],
        queues: Annotated[int, values.Queues] = 8,
        *,
        permission: Annotated[Permission, Param(choices=_PERMISSIONS, default="read-write")] = Permission.READ_WRITE,
        fifo: bool = False,
        compaction: Annotated[bool | Compaction | None, Param(flag="--compact")] = False,
        retention_s: Annotated[float, values.Retention] = 0.0,
        retention_bytes: Annotated[int, values.RetentionBytes] = 0,
        brokers: Annotated[Sequence[str], values.BrokerNames] = (),
        if_not_exists: bool = False,
    ) -> bool:
        """Create a topic on every master, or on some of them.

        It returns when the name servers show the topic, so that producers find it at once. Repeat it if it failed on
        some brokers, or to create the topic on brokers that have joined since or were offline. If `brokers` is given,
        other brokers are not checked and may have other counts.

        Args:
            name: 1 to 127 letters, digits and the characters _ - . such as "shop.orders.v1".
            queues: queues on each broker, 1 to 1024.
            permission: what clients may do with it.
            fifo: keep the order of the messages in each message group: consumers receive them one by one. This cannot
                be changed later.
            compaction: keep the latest message of each key, and remove older ones. In Python, a `Compaction` has the
                rules. Neither this nor the number of queues can be changed later.
            retention_s: how long messages are kept, in seconds; 0: as long as the broker keeps others.
            retention_bytes: maximum size on each broker, beyond which the oldest messages are deleted; 0: no limit.
            brokers: only on these brokers.
            if_not_exists: succeed if the topic exists, and leave its settings unchanged.

        Returns:
            Whether anything was created: False when all masters have it, or one of them with other settings.

        Raises:
            TopicExists: it is on all masters already, or with other settings on one of them. Nothing was changed.
                Not raised with `if_not_exists`.
            DeadlineExceeded: a name server did not show the topic in time. It has been created.
        """
        wanted, present, absent = self._to_create(Arguments(**locals()))
        request = broker_pb2.CreateTopicRequest(topic=wanted, if_not_exists=True)
        answers, failures = self._masters.call_all(absent, lambda stub: stub.CreateTopic, request)
        asked = {**dict.fromkeys(present, ""), **absent}
        raise_failures(f"topic {name} was not created", failures, asked, "repeat the call to complete it")
        raced = _unlike(wanted, answers)
        if raced and not if_not_exists:
            raise TopicExists(say_exists(name, raced))
        self._masters.wait_until_shown({**present, **answers})
        return bool(absent)

    def _to_create(
        self, given: Arguments
    ) -> tuple[broker_pb2.Topic, dict[str, broker_pb2.DescribeTopicResponse], dict[str, str]]:
        """Return the topic, the brokers that have it, and the masters that lack it. Raises as `create_topic`."""
        check_between("queues", given.queues, 1, MAX_QUEUES)
        check_permission(given.permission)
        compaction = Compaction() if given.compaction is True else given.compaction or None
        check_compaction(compaction)
        if not given.permission:
            raise InvalidArgument("a new topic must be readable or writable: permission is none")
        wanted = broker_pb2.Topic(
            topic=check_topic(given.name),
            read_queues=given.queues,
            write_queues=given.queues,
            permission=int(given.permission),
            fifo=given.fifo,
            retention_ms=retention_to_wire(given.retention_s),
            retention_bytes=check_retention_bytes(given.retention_bytes),
        )
        masters = self._masters.find(given.brokers, need="all")
        if compaction is not None:
            wanted.compaction.CopyFrom(compaction_to_wire(compaction, wanted.write_queues * len(masters)))
        present = self._masters.describe(given.name, masters)
        absent = {broker: address for broker, address in masters.items() if broker not in present}
        others = _unlike(wanted, present)
        if others and given.if_not_exists:
            absent = {}
        elif others or not (absent or given.if_not_exists):
            raise TopicExists(say_exists(given.name, others or _unlike(None, present)))
        if absent and compaction is not None and not given.brokers:
            remedy = "a compacted topic has all of its queues from the beginning: name brokers to leave others out"
            self._masters.reject_if_offline(f"topic {given.name} was not created", remedy)
        return wanted, present, absent


def _unlike(wanted: broker_pb2.Topic | None, answers: Mapping[str, _WithTopic]) -> dict[str, broker_pb2.Topic]:
    settings = None if wanted is None else topic_settings(wanted)
    return {broker: each.topic for broker, each in answers.items() if topic_settings(each.topic) != settings}


def retention_to_wire(seconds: float) -> int:
    """Convert seconds to ms. Raises `InvalidArgument` unless they are 0 or a retention that a topic may have."""
    if not 0.001 <= waiting_s(seconds, "retention_s") <= MAX_RETENTION_MS / 1000 and seconds != 0:
        raise InvalidArgument(f"retention_s is {seconds}: give up to {MAX_RETENTION_MS // 1000} (100 years), or 0")
    return round(seconds * 1000)


def check_retention_bytes(size: int) -> int:
    """Return a size. Raises `InvalidArgument` unless it is a whole number from 0 on."""
    check_between("retention_bytes", size, 0, MAX_NUMBER)
    return size


def topic_settings(topic: broker_pb2.Topic) -> tuple[object, ...]:
    """Return the settings in which the topics of two brokers must agree."""
    rules = topic.compaction.SerializeToString(deterministic=True) if topic.HasField("compaction") else None
    kept = topic.retention_ms, topic.retention_bytes
    return topic.read_queues, topic.write_queues, topic.permission, topic.fifo, rules, *kept


def say_exists(name: str, present: Mapping[str, broker_pb2.Topic]) -> str:
    """Return an error text with the settings of the topic on each broker, and remedies."""
    there = "; ".join(f"{broker}: {_settings_text(topic)}" for broker, topic in present.items())
    return f"topic {name} exists ({there}): change it with `minimq topic update {name}`, or choose another name"
