"""The operation that changes the settings and queues of topics."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from minimq.admin import values
from minimq.admin.descriptions import TopicDescription, TopicSettings
from minimq.admin.groups import GroupReads
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import Arguments, Form, Operation
from minimq.admin.texts import permission_note
from minimq.admin.topic_creation import (
    TopicCreation,
    check_retention_bytes,
    retention_text,
    retention_to_wire,
    size_limit_text,
)
from minimq.admin.topics import TopicReads
from minimq.admin.views import Plan, PlanRow, offline_plan_rows
from minimq.arguments import check_between, check_permission
from minimq.connection.offline_brokers import check_route
from minimq_common.errors import InvalidArgument, MinimqError, NotDrained, TopicNotFound, TopicUnavailable
from minimq_common.model import MAX_QUEUES, OfflineBroker, Permission, TopicRoute, check_all_readable, permission_name
from minimq_common.names import check_topic
from minimq_common.text_units import count_of
from minimq_proto.v1 import broker_pb2

#: The settings that change, with their names in a plan, and what shows their values there.
_SETTINGS: Final[Mapping[str, tuple[str, Any]]] = {
    "read_queues": ("read queues", int),
    "write_queues": ("write queues", int),
    "permission": ("permission", permission_name),
    "retention_s": ("retention", retention_text),
    "retention_bytes": ("size limit", size_limit_text),
}

_NOTHING = "nothing to change: give queues, read_queues, write_queues, permission, retention_s or retention_bytes"

_PAGE: Final = "/topics/{name}"


def _plan_update(admin: TopicOperations, given: Arguments) -> Plan:
    _update_request(given)
    name = given.name
    carriers = admin._carriers(name, given.brokers)
    described = admin.describe_topic(name)
    changes = {each: vars(given)[each] for each in _SETTINGS if vars(given)[each] is not None}
    if given.queues is not None:
        changes |= {"read_queues": given.queues, "write_queues": given.queues}
    rows, is_harmless = list[PlanRow](), True
    for old in (each for each in described.settings if each.broker_name in carriers):
        new = replace(old, **changes)
        if (old.read_queues, old.write_queues) != (new.read_queues, new.write_queues) and not given.force:
            check_all_readable(new.read_queues, new.write_queues)
        losses = _losses(described, old, new)
        is_harmless = is_harmless and not losses
        notes = {"write_queues": "keys may go to other queues" if old.write_queues != new.write_queues else ""}
        notes |= {"permission": permission_note(new.permission), **losses}
        rows += [
            PlanRow(
                f"{label} of {name} on {old.broker_name}",
                shown(getattr(old, each)),
                shown(getattr(new, each)),
                notes.get(each, ""),
            )
            for each, (label, shown) in _SETTINGS.items()
            if each in changes
        ]
    if "read_queues" in changes:
        rows += _unread_rows(admin, described, changes["read_queues"], force=given.force)
    offline = admin._left_out(name, given.brokers, carriers)
    rows += offline_plan_rows(name, offline, "not changed")
    return Plan(rows=rows, is_harmless=is_harmless, is_complete=not offline)


def _losses(described: TopicDescription, old: TopicSettings, new: TopicSettings) -> dict[str, str]:
    """Return what happens to stored messages on a broker, by the setting that causes it."""
    found = {}
    queues = [each for each in described.queues if each.queue.broker_name == old.broker_name]
    taken = [each for each in queues if new.read_queues <= each.queue.queue_id < old.read_queues]
    if hidden := sum(each.messages for each in taken):
        found["read_queues"] = f"{count_of(hidden, 'stored message')} hidden from new groups and replays"
    deletes = "messages beyond it can no longer be read"
    # The retention of the broker, 0, may be longer or shorter.
    if new.retention_s != old.retention_s and not 0 < old.retention_s < new.retention_s:
        found["retention_s"] = deletes
    if (new.retention_bytes or math.inf) < (old.retention_bytes or math.inf):
        found["retention_bytes"] = deletes
    return found


def _unread_rows(admin: TopicOperations, described: TopicDescription, queues: int, *, force: bool) -> list[PlanRow]:
    """Return a row for each group that has unread messages in the queues that are removed."""
    taken = {each.queue for each in described.queues if each.queue.queue_id >= queues}
    note = "hidden from it" if force else "rejected until it has read them"
    unread = {
        group.group: sum(queue.lag for queue in group.queues if queue.queue in taken)
        for group in (admin._readers(described) if taken else ())
    }
    return [PlanRow(f"group {group}: unread in removed queues", lag, lag, note) for group, lag in unread.items() if lag]


def _settings_now(admin: TopicOperations, given: Arguments) -> Mapping[str, str]:
    settings = admin.describe_topic(given.name).settings
    permissions = {each.permission for each in settings}
    return {
        "queues": str(max((each.read_queues for each in settings), default=1)),
        **({"permission": permission_name(permissions.pop())} if len(permissions) == 1 else {}),
    }


def _plan_deletion(admin: TopicOperations, given: Arguments) -> Plan:
    name, brokers = given.name, given.brokers
    chosen = admin._to_delete(name, brokers, if_exists=given.if_exists, force=given.force)
    offline = admin._left_out(name, brokers, chosen) if given.force else ()  # without force it is rejected
    rows = offline_plan_rows(name, offline, "brings the topic back when it starts: then delete it again")
    if not chosen:
        return Plan(rows=rows, is_harmless=True)
    described = admin.describe_topic(name)
    stored = dict.fromkeys(sorted(chosen), 0)
    for each in described.queues:
        if each.queue.broker_name in stored:
            stored[each.queue.broker_name] += each.messages
    deleted = [PlanRow(f"messages of {name} on {broker}", count) for broker, count in stored.items()]
    return Plan(rows=[*deleted, *admin._reader_rows(described), *rows])


class TopicOperations(TopicCreation, TopicReads, GroupReads):
    """Creates, lists, describes, changes and deletes topics; a part of `Admin`."""

    @Operation(
        "topic update",
        example="topic update orders --queues 32",
        plan=_plan_update,
        asks="Change topic {name}?",
        forms=[
            Form(
                "resize-topic",
                _PAGE,
                "Resize topic {name}",
                "Resize",
                fields={"queues": "Queues on each broker"},
                defaults=_settings_now,
            ),
            Form(
                "pause-topic",
                _PAGE,
                "Pause sending to topic {name}, or reading",
                "Pause",
                fields={"permission": "Paused"},
                defaults=_settings_now,
                choices=lambda *_: values.PAUSES,
            ),
            Form(
                "change-topic",
                _PAGE,
                "Change topic {name}",
                "Change retention",
                fields={"retention_s": "Keep messages for", "retention_bytes": "Keep at most, on each broker"},
            ),
        ],
    )
    def update_topic(
        self,
        name: values.TopicName,
        *,
        queues: Annotated[int | None, values.Queues] = None,
        read_queues: Annotated[int | None, values.Queues] = None,
        write_queues: Annotated[int | None, values.Queues] = None,
        permission: Annotated[Permission | None, values.Allowed] = None,
        retention_s: Annotated[float | None, values.Retention] = None,
        retention_bytes: Annotated[int | None, values.RetentionBytes] = None,
        brokers: Annotated[Sequence[str], values.BrokerNames] = (),
        force: bool = False,
    ) -> tuple[OfflineBroker, ...]:
        """Change a topic on every master that carries it. Settings that you do not give stay as they are.

        `queues` changes the number of queues while producers and consumers run, and loses no message. Consumers see
        added queues before producers use them. A broker removes queues only once every group has read them: while
        producers send, lower `write_queues` first, and `read_queues` when the groups have read the rest. Messages in
        removed queues stay stored, but groups that begin later and replays do not see them until the queues are added
        again.

        A shorter `retention_s` or smaller `retention_bytes` hides expired messages within seconds; their disk space is
        freed later. A broker that is offline is not changed: repeat the command when it is back.

        Args:
            name: of the topic.
            queues: queues on each broker, for consumers and producers.
            read_queues: queues that consumers see on each broker, 1 to 1024.
            write_queues: queues that producers see on each broker, 1 to 1024.
            permission: what clients may do with it.
            retention_s: how long messages are kept, in seconds; 0: as long as the broker keeps others.
            retention_bytes: maximum size on each broker, beyond which the oldest messages are deleted; 0: no limit.
            brokers: only on these brokers.
            force: remove queues even if they have unread messages, or if producers still send to them.

        Returns:
            The brokers that carry the topic and are offline, on which it was not changed; none when `brokers` is given.

        Raises:
            TopicNotFound: no master carries it, or not all of `brokers` do.
            TopicUnavailable: all brokers that carry it are offline.
            NotDrained: a group has not read what would be hidden; the text names groups and queues.
            InvalidArgument: there is nothing to change, a number breaks a rule, or there is no such broker.
        """
        request = _update_request(Arguments(**locals()))
        carriers = self._carriers(name, brokers)
        left_out = self._left_out(name, brokers, carriers)
        if queues is not None:  # consumers see new queues before producers use them
            present = self._masters.describe(name, carriers)
            growing = {each: carriers[each] for each, it in present.items() if it.topic.read_queues < queues}
            self._update(growing, broker_pb2.UpdateTopicRequest(topic=name, read_queues=queues))
        self._update(carriers, request)
        return left_out

    @Operation(
        "topic delete",
        example="topic delete orders",
        plan=_plan_deletion,
        asks="Delete topic {name}?",
        forms=[Form("delete-topic", "/topics/{name}", "Delete topic {name}", "Delete", to="/topics", typed="name")],
    )
    def delete_topic(
        self,
        name: values.TopicName,
        *,
        brokers: Annotated[Sequence[str], values.BrokerNames] = (),
        if_exists: bool = False,
        force: bool = False,
    ) -> tuple[OfflineBroker, ...]:
        """Delete a topic with all its messages.

        It is deleted on all brokers, or on some of them. This is rejected while a broker of the topic is offline, since
        that broker would bring the topic back. `force` or `brokers` deletes the topic on the others.

        Args:
            name: of the topic.
            brokers: only on these brokers.
            if_exists: succeed if there is no such topic.
            force: delete even while a broker of the topic is offline; that broker brings the topic back when it starts.

        Returns:
            The brokers that are offline and bring the topic back: delete it again then. None when `brokers` is given.

        Raises:
            TopicNotFound: no master carries it, or not all of `brokers` do.
            Unavailable: a broker that carries it is offline; the text says since when.
        """
        carriers = self._to_delete(name, brokers, if_exists=if_exists, force=force)
        request = broker_pb2.DeleteTopicRequest(topic=name)
        done = self._masters.delete(f"topic {name}", carriers, lambda stub: stub.DeleteTopic, request)
        return self._left_out(name, brokers, done)

    def _to_delete(self, name: str, brokers: Sequence[str], *, if_exists: bool, force: bool) -> dict[str, str]:
        """Return the masters on which to delete the topic. Raises as `delete_topic`."""
        check_topic(name)

        def check_offline() -> None:
            if not force and not brokers:
                remedy = "delete it on the others with force (--force) or by name (--broker)"
                self._masters.reject_if_offline(f"topic {name} was not deleted", remedy, topic=name)

        try:
            return self._masters.before_offline(lambda: self._carriers(name, brokers), check_offline)
        except (TopicNotFound, TopicUnavailable):
            if if_exists:
                return {}
            where = f" on {', '.join(brokers)}" if brokers else ""
            raise TopicNotFound(
                f"there is no topic {name}{where} to delete: `minimq topic list` shows the topics; one on a "
                "broker that is offline can be deleted when the broker is back"
            ) from None

    def _update(self, carriers: Mapping[str, str], request: broker_pb2.UpdateTopicRequest) -> None:
        answers, failures = self._masters.call_all(carriers, lambda stub: stub.UpdateTopic, request)
        failures = {broker: _with_remedy(error) for broker, error in failures.items()}
        remedy = "the others were changed; repeat the call to complete it"
        raise_failures(f"topic {request.topic} was not changed", failures, carriers, remedy)
        self._masters.wait_until_shown(answers)

    def _carriers(self, topic: str, brokers: Sequence[str]) -> dict[str, str]:
        masters = self._masters.find(brokers, need="all")
        present = self._masters.describe(topic, masters)
        if not present and not brokers:
            check_route(TopicRoute(topic, (), {}, self._masters.offline(topic)))
            raise TopicNotFound.nowhere(topic)
        absent = [broker for broker in brokers if broker not in present]
        if absent:
            create = " --broker ".join((f"minimq topic create {topic}", *absent))
            raise TopicNotFound(f"topic {topic} is not on {', '.join(absent)}: create it there with `{create}`")
        return {broker: masters[broker] for broker in present}

    def _left_out(self, topic: str, brokers: Sequence[str], done: Collection[str]) -> tuple[OfflineBroker, ...]:
        offline = () if brokers else self._masters.offline(topic)
        return tuple(each for each in offline if each.broker_name not in done)


def _update_request(given: Arguments) -> broker_pb2.UpdateTopicRequest:
    read, write = given.read_queues, given.write_queues
    if given.queues is not None:
        if (read, write) != (None, None):
            raise InvalidArgument("queues sets both counts: give it alone, or read_queues and write_queues")
        read = write = given.queues
    for name, count in (("read_queues", read), ("write_queues", write)):
        if count is not None:
            check_between("queues" if given.queues is not None else name, count, 1, MAX_QUEUES)
    if given.permission is not None:
        check_permission(given.permission)
    if all(vars(given)[each] is None for each in ("queues", *_SETTINGS)):
        raise InvalidArgument(_NOTHING)
    return broker_pb2.UpdateTopicRequest(
        topic=check_topic(given.name),
        read_queues=read,
        write_queues=write,
        permission=None if given.permission is None else int(given.permission),
        retention_ms=None if given.retention_s is None else retention_to_wire(given.retention_s),
        retention_bytes=None if given.retention_bytes is None else check_retention_bytes(given.retention_bytes),
        force=given.force,
    )


def _with_remedy(error: MinimqError) -> MinimqError:
    if not isinstance(error, NotDrained):
        return error
    return error.with_message(
        f"{error.message}: lower the write queues first and let every group read the rest; delete a "
        "group that is not used, or hide the messages all the same with force (--force)"
    )
