"""The rights that each request takes, for one table of all requests of all servers.

It goes by the message and not by the call, since one stream carries requests about many things. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from minimq_common.names import DEAD_LETTER_PREFIX, DONE_PREFIX, RETRY_PREFIX
from minimq_common.security.access_rule import Need, Resource, Verb


class CallerKind(Enum):
    """The kind of caller that may ask at all."""

    ANYBODY = "anybody"
    USER = "user"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Requirement:
    """All that a request takes."""

    #: Who may ask at all.
    standing: CallerKind = CallerKind.USER
    needs: tuple[Need, ...] = ()
    #: Servers may ask without these rights.
    or_server: bool = False


ANYBODY = Requirement(CallerKind.ANYBODY)
SIGNED_IN = Requirement()
SERVERS = Requirement(CallerKind.SERVER)

_Rule = Callable[[Any], Requirement]


def requirement_of(request: Any) -> Requirement:
    """Return what a request takes. Raises `KeyError` when the table does not have it, which no server starts with."""
    return _RULES[request.DESCRIPTOR.full_name](request)


def has_rule(full_name: str) -> bool:
    """Return whether the table has the requests of this full name."""
    return full_name in _RULES


def kind_of(full_name: str) -> CallerKind:
    """Return who may begin a call with requests of this full name, whatever these say."""
    return _KIND_BY_RULE.get(_RULES[full_name], CallerKind.USER)


def _topic(verb: Verb) -> _Rule:
    return lambda request: _all(Need(verb, Resource.TOPIC, request.topic))


def _group(verb: Verb) -> _Rule:
    return lambda request: _all(Need(verb, Resource.GROUP, request.group))


def _cluster(verb: Verb, *, or_server: bool = False) -> _Rule:
    requirement = Requirement(needs=(Need(verb, Resource.CLUSTER),), or_server=or_server)
    return lambda _: requirement


def _always(requirement: Requirement) -> _Rule:
    return lambda _: requirement


def _all(*needs: Need) -> Requirement:
    return Requirement(needs=needs)


def _reads(group: str, topics: Iterable[str]) -> Requirement:
    names = dict.fromkeys(topics)  # each once: requests repeat the topic with each queue
    return _all(Need(Verb.READ, Resource.GROUP, group), *(Need(Verb.READ, Resource.TOPIC, name) for name in names))


def _append(request: Any) -> Requirement:
    write = Need(Verb.WRITE, Resource.TOPIC, request.topic)
    if not request.HasField("transaction"):
        return _all(write)
    return _all(write, Need(Verb.WRITE, Resource.TRANSACTION, request.transaction.name))


def _append_atomic(request: Any) -> Requirement:
    writes = [Need(Verb.WRITE, Resource.TOPIC, name) for name in dict.fromkeys(each.topic for each in request.batches)]
    progress, commit = request.progress, request.progress.commit
    reads = [_reads(commit.group, (each.topic for each in commit.offsets))] if progress.HasField("commit") else []
    if progress.group or progress.settles:
        reads.append(_reads(progress.group, (each.topic for each in progress.settles)))
    return _all(*writes, *(need for each in reads for need in each.needs))


def _append_many(request: Any) -> Requirement:
    return _all(*dict.fromkeys(need for each in request.appends for need in _append_atomic(each).needs))


def _pull(request: Any) -> Requirement:
    if request.cancel:
        return SIGNED_IN
    if request.HasField("lease"):
        return _reads(request.lease.group, [request.topic])
    return _all(Need(Verb.READ, Resource.TOPIC, request.topic))


def _session(request: Any) -> Requirement:
    kind = request.WhichOneof("action")
    if kind in (None, "heartbeat"):
        return SIGNED_IN
    action = getattr(request, kind)
    if kind == "join":
        return _reads(action.group, action.topics)
    if kind == "acquire":
        return _reads(action.group, _acquired(action))
    return _reads(action.group, ())


def _acquired(action: Any) -> Iterator[str]:
    yield from (each.topic for each in action.queues)
    yield from (each.topic for each in action.begun)


def _pop(request: Any) -> Requirement:
    return _reads(request.group, (each.topic for each in (*request.settles, *request.takes)))


def _attend(request: Any) -> Requirement:
    return _all(*(Need(Verb.WRITE, Resource.TRANSACTION, group) for group in request.producer_groups))


def _create_topic(request: Any) -> Requirement:
    name = request.topic.topic
    # A topic of a group is made by whoever uses it: the right to write it is the right to read the group.
    is_used = request.automatic or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, DONE_PREFIX))
    return _all(Need(Verb.WRITE if is_used else Verb.MANAGE, Resource.TOPIC, name))


def _transaction(request: Any) -> Requirement:
    return _all(Need(Verb.WRITE, Resource.TRANSACTION, request.name))


def _list_delayed(request: Any) -> Requirement:
    describe = Need(Verb.DESCRIBE, Resource.TOPIC, request.topic)
    return _all(describe, Need(Verb.READ, Resource.TOPIC, request.topic)) if request.with_batches else _all(describe)


def _half(request: Any) -> Requirement:
    return _all(Need(Verb.WRITE, Resource.TRANSACTION, request.producer_group))


def _halves(request: Any) -> Requirement:
    groups = dict.fromkeys(each.producer_group for each in request.ends)
    return _all(*(Need(Verb.WRITE, Resource.TRANSACTION, group) for group in groups))


def _list_halves(request: Any) -> Requirement:
    if not request.producer_group:
        return SIGNED_IN  # the answer is filtered
    return _all(Need(Verb.DESCRIBE, Resource.TRANSACTION, request.producer_group))


def _get_committed(request: Any) -> Requirement:
    group = Need(Verb.DESCRIBE, Resource.GROUP, request.group)
    return _all(group, Need(Verb.DESCRIBE, Resource.TOPIC, request.topic)) if request.topic else _all(group)


def _reset_offsets(request: Any) -> Requirement:
    return _all(
        Need(Verb.MANAGE, Resource.GROUP, request.group),
        Need(Verb.READ, Resource.TOPIC, request.topic),
    )


def _replicate(request: Any) -> Requirement:
    is_snapshot = request.WhichOneof("first") == "snapshot"
    return _cluster(Verb.BACKUP, or_server=True)(request) if is_snapshot else SERVERS


_OPEN, _SERVERS_ALONE = _always(ANYBODY), _always(SERVERS)
_KIND_BY_RULE = {_OPEN: CallerKind.ANYBODY, _SERVERS_ALONE: CallerKind.SERVER}

_RULES: dict[str, _Rule] = {
    "grpc.health.v1.HealthCheckRequest": _OPEN,
    "grpc.health.v1.HealthListRequest": _OPEN,
    "grpc.reflection.v1alpha.ServerReflectionRequest": _always(SIGNED_IN),
    **{
        f"minimq.v1.{name}": rule
        for name, rule in {
            "AppendRequest": _append,
            "AtomicAppend": _append_atomic,
            "AtomicAppendRequest": _append_many,
            "PullRequest": _pull,
            "PopRequest": _pop,
            "SessionRequest": _session,
            "AttendRequest": _attend,
            # Who may reply has read the request: nobody else knows the address of an inbox.
            "ReplyRequest": _always(SIGNED_IN),
            "CreateTopicRequest": _create_topic,
            "UpdateTopicRequest": _topic(Verb.MANAGE),
            "DeleteTopicRequest": _topic(Verb.MANAGE),
            "DescribeTopicRequest": _topic(Verb.DESCRIBE),
            "GetOffsetRequest": _topic(Verb.DESCRIBE),
            "FindRequest": _topic(Verb.READ),
            "TraceMessageRequest": _topic(Verb.READ),  # groups in the answer are filtered
            "RecallRequest": _topic(Verb.WRITE),
            "ListDelayedRequest": _list_delayed,
            "CommitTransactionRequest": _transaction,
            "DescribeTransactionRequest": _transaction,
            "EndHalfRequest": _half,
            "EndHalvesRequest": _halves,
            "ListHalvesRequest": _list_halves,
            "CommitOffsetsRequest": lambda request: _reads(request.group, (each.topic for each in request.offsets)),
            "GetCommittedRequest": _get_committed,
            "DescribeGroupRequest": _group(Verb.DESCRIBE),
            "DeleteGroupRequest": _group(Verb.MANAGE),
            "ListGroupsRequest": _always(SIGNED_IN),  # the answer is filtered
            "ResetOffsetsRequest": _reset_offsets,
            "GetStatusRequest": _cluster(Verb.DESCRIBE),
            "ProbeRequest": _always(SIGNED_IN),
            "SetPermissionRequest": _cluster(Verb.MANAGE),
            "PromoteRequest": _cluster(Verb.MANAGE),
            "GetAccessRequest": _cluster(Verb.ACCESS),
            "SetAccessRequest": _cluster(Verb.ACCESS),
            "ReplicaRequest": _replicate,
            "RegisterRequest": _SERVERS_ALONE,
            "AccessNotice": _SERVERS_ALONE,
            "GetRouteRequest": _topic(Verb.DESCRIBE),
            "WatchRoutesRequest": lambda request: _all(
                *(Need(Verb.DESCRIBE, Resource.TOPIC, each) for each in request.topics)
            ),
            "ListTopicsRequest": _always(SIGNED_IN),  # the answer is filtered
            "GetClusterRequest": _always(SIGNED_IN),  # every client looks brokers up; conflicts are filtered
            "ForgetBrokerRequest": _cluster(Verb.MANAGE),
            "CheckRightsRequest": _always(SIGNED_IN),  # everybody may know their own rights
            "ReportRequest": _SERVERS_ALONE,
            "ChangeInSyncRequest": _SERVERS_ALONE,
            "PromoteReplicaRequest": _cluster(Verb.MANAGE, or_server=True),
        }.items()
    },
}
