"""The operation that changes the settings and queues of topics."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from minimq.admin import values
from minimq.admin.descriptions import TopicDescription, TopicSettings
from minimq.admin.groups import say_readers
from minimq.admin.master_client import raise_failures
from minimq.admin.operation import HIDDEN, Arguments, Form, Operation, Param
from minimq.admin.texts import duration_of, left_out, listing, say_permission, size_of
from minimq.admin.views import Plan, View, offline_rows
from minimq.arguments import check_permission
from minimq.connection.offline_brokers import check_route
from minimq_common.errors import InvalidArgument, MinimqError, NotDrained, TopicNotFound
from minimq_common.model import OfflineBroker, Permission, TopicRoute, check_all_readable, permission_name
from minimq_common.names import check_group, check_topic
from minimq_common.text_units import count_of
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:
    from minimq.admin.admin import Admin

from minimq.admin.topic_creation import (
    TopicCreation,
    check_queue_counts,
    check_retention_bytes,
    retention_to_wire,
    say_retention,
    settings_line,
)

#: The fields of a request that change something.
_CHANGED: Final = ("read_queues", "write_queues", "permission", "retention_ms", "retention_bytes")

_IGNORED = Param(flag="--ignore-group", complete="groups", help="Remove queues even if this group has not read them.")
_NOTHING = "nothing to change: give queues, read_queues, write_queues, permission, retention_s or retention_bytes"

_PAGE: Final = "/topics/{name}"

_MAX_TIMEOUT_S: Final = 86_400


def _plan_update(admin: Admin, given: Arguments) -> Plan:
    _update_request(given)
    carriers = admin._carriers(given.name, given.cluster, given.brokers, given.queues)
    everywhere = admin.describe_topic(given.name)
    described = replace(
        everywhere,
        settings=tuple(each for each in everywhere.settings if each.broker_name in carriers),
        queues=tuple(each for each in everywhere.queues if each.queue.broker_name in carriers),
    )
    settings = described.settings
    changes: Mapping[str, Any] = {
        "read_queues": given.read_queues if given.queues is None else given.queues,
        "write_queues": given.write_queues if given.queues is None else given.queues,
        "permission": given.permission,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    later = [replace(each, **changes) for each in settings]
    for each in later if {"read_queues", "write_queues"} & changes.keys() and not given.force else ():
        check_all_readable(each.read_queues, each.write_queues)
    sentences: list[str] = []
    warnings: list[str] = []
    hidden = 0
    if "read_queues" in changes or "write_queues" in changes:
        sentences += _say_queues(described, later, given)
    if (queues := changes.get("read_queues")) is not None:
        hidden = described.hidden_by(queues)
        warnings += _say_taken(admin, described, queues, hidden)
    if given.permission is not None:
        if all(each.permission is given.permission for each in settings):
            sentences.append(f"That is so already on {listing([each.broker_name for each in settings])}.")
        sentences += say_permission(given.permission, f"topic {given.name}", ": their sends fail after all attempts")
        if not given.permission & Permission.READ:
            sentences.append(say_readers(admin, described))
    if given.retention_s is not None or given.retention_bytes is not None:
        sentences += [f"Changes topic {given.name}.", *say_retention(given.retention_s, given.retention_bytes)]
        sentences += [
            f"On {each.broker_name} now: {duration_of(each.retention_s) if each.retention_s else 'as long as others'}, "
            f"{size_of(each.retention_bytes) if each.retention_bytes else 'no limit of its own'}."
            for each in settings
        ]
    if is_shorter := _is_shorter(admin, given, carriers, settings):
        warnings.append("Within minutes, messages beyond the new limits can no longer be read.")
    offline = admin._left_out(given.name, given.cluster, given.brokers, carriers)
    warnings += [f"Broker {each.broker_name} is offline, and is not changed." for each in offline]
    shown = {each.broker_name: each for each in (*everywhere.settings, *later)}
    return Plan(
        sentences=sentences,
        warnings=warnings,
        is_harmless=not (hidden or is_shorter),
        seen=[settings_line(*each) for each in shown.items()],
    )


def _is_shorter(admin: Admin, given: Arguments, carriers: Mapping[str, str], settings: Sequence[TopicSettings]) -> bool:
    if given.retention_bytes and any(not 0 < each.retention_bytes <= given.retention_bytes for each in settings):
        return True
    age_s = given.retention_s
    if age_s is None or all(each.retention_s == age_s for each in settings):
        return False
    # Users who may not describe the cluster do not get the age of topics without one of their own.
    answers, _ = admin._masters.call_all(carriers, lambda stub: stub.GetStatus, broker_pb2.GetStatusRequest())
    usual = {broker: answer.retention_ms / 1000 or math.inf for broker, answer in answers.items()}
    return any(
        (age_s or usual.get(each.broker_name, 0)) < (each.retention_s or usual.get(each.broker_name, math.inf))
        for each in settings
    )


def _say_queues(described: TopicDescription, later: Sequence[TopicSettings], given: Arguments) -> list[str]:
    changed = [
        (old, new)
        for old, new in zip(described.settings, later, strict=True)
        if (old.read_queues, old.write_queues) != (new.read_queues, new.write_queues)
    ]
    if not changed:
        return [f"Topic {described.topic} has these queues already."]
    said = [
        f"On {new.broker_name} topic {described.topic} gets {_queues(new)} in place of {_queues(old)}."
        for old, new in changed
    ]
    if any(old.read_queues > new.read_queues for old, new in changed):
        taken = [each for each in described.queues if each.queue.queue_id >= changed[0][1].read_queues]
        what = f"{count_of(len(taken), 'queue')} with {count_of(sum(each.messages for each in taken), 'message')}"
        said.append(
            f"Consumers leave {what} at once{'' if given.force else ', if every group has read them'}."
            if given.queues is None or given.force
            else f"Producers leave {what} at once; consumers leave when every group has read them, within "
            f"{given.timeout_s:.0f} s."
        )
    elif given.queues is not None:
        said.append("Consumers see the new queues before producers use them.")
    if any(old.write_queues != new.write_queues for old, new in changed):
        said.append("Keys may go to other queues then.")
    return said


def _queues(of: TopicSettings) -> str:
    if of.read_queues == of.write_queues:
        return count_of(of.read_queues, "queue")
    return f"{count_of(of.write_queues, 'write queue')} and {count_of(of.read_queues, 'read queue')}"


def _say_taken(admin: Admin, described: TopicDescription, queues: int, hidden: int) -> list[str]:
    said = []
    if hidden:
        said.append(
            f"{count_of(hidden, 'stored message')} of topic {described.topic} will be hidden from groups that begin "
            "later and from replays. More queues show them again."
        )
    names = {each.queue for each in described.queues if each.queue.queue_id >= queues}
    for group in admin._readers(described) if names else ():
        if unread := sum(queue.lag for queue in group.queues if queue.queue in names):
            said.append(f"Group {group.group} has {count_of(unread, 'unread message')} there.")
    return said


def _view_update(_admin: Admin, given: Arguments, offline: Sequence[OfflineBroker], plan: Plan) -> View:
    return View(
        json={"topic": given.name, "offline": offline_rows(offline)},
        lines=[f"topic {given.name} changed", *plan.seen],
        notes=left_out(offline, "not changed"),
        is_complete=not offline,
    )


def _settings_now(admin: Admin, given: Arguments) -> Mapping[str, str]:
    settings = admin.describe_topic(given.name).settings
    permissions = {each.permission for each in settings}
    return {
        "queues": str(max((each.read_queues for each in settings), default=1)),
        **({"permission": permission_name(permissions.pop())} if len(permissions) == 1 else {}),
    }


class TopicChanges(TopicCreation):
    """Changes topics; a part of `Admin`."""

    @Operation(
        "topic update",
        example="topic update orders --queues 32",
        plan=_plan_update,
        view=_view_update,
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
    def update_topic(  # noqa: PLR0913 - by name, as the flags of the command
        self,
        name: values.TopicName,
        *,
        queues: Annotated[int | None, values.Queues] = None,
        read_queues: Annotated[int | None, values.Queues] = None,
        write_queues: Annotated[int | None, values.Queues] = None,
        permission: Annotated[Permission | None, values.Allowed] = None,
        retention_s: Annotated[float | None, values.Retention] = None,
        retention_bytes: Annotated[int | None, values.RetentionBytes] = None,
        cluster: values.ClusterName = None,
        brokers: Annotated[Sequence[str], values.BrokerNames] = (),
        ignore_groups: Annotated[Sequence[str], _IGNORED] = (),
        force: bool = False,
        timeout_s: Annotated[float, Param(flag="--timeout", low=0.001, high=_MAX_TIMEOUT_S, metavar="SECONDS")] = 60.0,
        wait: Annotated[bool, HIDDEN] = True,
        progress: Annotated[Callable[[str], None] | None, values.Progress] = None,
        is_wanted: Annotated[Callable[[], bool] | None, HIDDEN] = None,
    ) -> tuple[OfflineBroker, ...]:
        """Change a topic on every master that carries it. Settings that you do not give stay as they are.

        `queues` changes the number of queues while producers and consumers run, and loses no message. Consumers see
        added queues before producers do, and finish reading queues before these are removed. If a group does not read
        them in time, the command fails; repeat it to continue. Messages in removed queues stay stored, but groups that
        begin later and replays do not see them until the queues are added again. `read_queues` and `write_queues` are
        the single steps.

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
            cluster: name of the cluster; needed if the name servers know several.
            brokers: only on these brokers.
            ignore_groups: remove queues even if these groups have not read them.
            force: remove queues even if they have unread messages, or if producers still send to them.
            timeout_s: seconds to wait until all groups have read the removed queues, at most 86400.
            wait: return only when every name server that answers shows the change.
            progress: called in the calling thread, with a sentence about each step and wait.
            is_wanted: called in the calling thread before each wait for groups; False acts as an expired `timeout_s`.

        Returns:
            The brokers that carry the topic and are offline, on which it was not changed; none when `brokers` is given.

        Raises:
            TopicNotFound: no master carries it, or not all of `brokers` do.
            TopicUnavailable: all brokers that carry it are offline.
            NotDrained: a group has not read what would be hidden; the text names groups and queues.
            InvalidArgument: there is nothing to change, a number breaks a rule, or there is no such cluster or broker.
        """
        request = _update_request(Arguments(**locals()))
        has_steps = any(request.HasField(field) for field in _CHANGED)
        carriers = self._carriers(name, cluster, brokers, queues)
        left_out = self._left_out(name, cluster, brokers, carriers)
        changed = carriers if has_steps else {}
        answers, failures = self._masters.call_all(changed, lambda stub: stub.UpdateTopic, request)
        failures = {broker: _with_remedy(error) for broker, error in failures.items()}
        remedy = "the others were changed; repeat the call to complete it"
        raise_failures(f"topic {name} was not changed", failures, carriers, remedy)
        if wait and has_steps:
            self._masters.wait_until_shown(answers)
        if queues is not None:
            from minimq.admin.resizing import Resize

            ignored = tuple(request.ignored_groups)
            resize = Resize(self._masters, name, queues, carriers, ignored, force=force, progress=progress)
            resize.run(timeout_s, is_wanted)
        return left_out

    def _carriers(
        self, topic: str, cluster: str | None, brokers: Sequence[str], queues: int | None = None
    ) -> dict[str, str]:
        masters = self._masters.find(cluster, brokers, need="all")
        present = self._masters.describe(topic, masters)
        if not present and not brokers:
            check_route(TopicRoute(topic, (), {}, self._masters.offline(cluster, topic)))
            raise TopicNotFound.nowhere(topic)
        absent = [broker for broker in brokers if broker not in present]
        if absent:
            count = "" if queues is None else f" --queues {queues}"
            create = " --broker ".join((f"minimq topic create {topic}{count}", *absent))
            raise TopicNotFound(f"topic {topic} is not on {', '.join(absent)}: create it there with `{create}`")
        return {broker: masters[broker] for broker in present}

    def _left_out(
        self, topic: str, cluster: str | None, brokers: Sequence[str], done: Collection[str]
    ) -> tuple[OfflineBroker, ...]:
        offline = () if brokers else self._masters.offline(cluster, topic)
        return tuple(each for each in offline if each.broker_name not in done)


def _update_request(given: Arguments) -> broker_pb2.UpdateTopicRequest:
    check_queue_counts(read_queues=given.read_queues, write_queues=given.write_queues)
    if given.permission is not None:
        check_permission(given.permission)
    request = broker_pb2.UpdateTopicRequest(
        topic=check_topic(given.name),
        read_queues=given.read_queues,
        write_queues=given.write_queues,
        permission=None if given.permission is None else int(given.permission),
        retention_ms=None if given.retention_s is None else retention_to_wire(given.retention_s),
        retention_bytes=None if given.retention_bytes is None else check_retention_bytes(given.retention_bytes),
        force=given.force,
        ignored_groups=[check_group(group) for group in given.ignore_groups],
    )
    if given.queues is None and not any(request.HasField(field) for field in _CHANGED):
        raise InvalidArgument(_NOTHING)
    if given.queues is not None:
        if (given.read_queues, given.write_queues) != (None, None):
            raise InvalidArgument("queues sets both counts: give it alone, or read_queues and write_queues")
        check_queue_counts(queues=given.queues)
        if not 0 < given.timeout_s <= _MAX_TIMEOUT_S:
            raise InvalidArgument(f"timeout_s is {given.timeout_s}: it must be above 0, and at most {_MAX_TIMEOUT_S:,}")
    return request


def _with_remedy(error: MinimqError) -> MinimqError:
    if not isinstance(error, NotDrained):
        return error
    return error.with_message(
        f"{error.message}: lower the write queues first and let every group read the rest; --ignore-group leaves a "
        "dead one out, --force hides the messages all the same"
    )
