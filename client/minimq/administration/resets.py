"""Offset resets: a group goes on elsewhere in a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minimq.administration.failures import raise_failures
from minimq.administration.live_members import RESET, refuse_if_live, some_of
from minimq.administration.masters import Masters
from minimq.transport.start_position import Start, offset_or_start
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.moments import LEAST_MS
from minimq_common.words import count_of
from minimq_proto.v1 import broker_pb2


class Reset:
    """One reset, which may be tried again. Thread-safe."""

    def __init__(
        self, masters: Masters, request: broker_pb2.ResetOffsetsRequest, chosen: Mapping[str, Sequence[int]] | None
    ) -> None:
        self._masters = masters
        self._request = request
        self._chosen = chosen

    def run(self, *, dry_run: bool) -> dict[MessageQueue, int]:
        """Reset all queues of the topic, or those chosen by broker name; or only look where they would go on.

        All brokers are looked at before one is changed; each decides once more by itself.
        """
        request, chosen = self._request, self._chosen
        group, topic = request.group, request.topic
        if chosen or not request.force:
            what = f"group {group} was not reset in topic {topic}"
            remedy = "choose queues of other brokers (--queue), or all of them with force (--force)"
            self._masters.refuse_if_away(what, remedy, topic=topic, names=chosen or ())
        masters, described = self._masters.with_retries(lambda: self._masters_of(topic, chosen))
        ids = chosen or {broker: [] for broker in masters}
        _check_queues(topic, ids, described, request.offset if request.WhichOneof("to") == "offset" else None)
        if not request.force:
            refuse_if_live(self._masters, group, masters, RESET, topic, ids)
        if dry_run:
            return self._targets(ids, described, masters)
        requests = {broker: _for_queues(request, ids[broker]) for broker in masters}
        answers, failures = self._masters.call_all(masters, lambda stub: stub.ResetOffsets, requests)
        done = f"done on {', '.join(answers)}: " if answers else ""
        remedy = f"{done}repeat the call to complete it"
        raise_failures(f"the offsets of group {group} were not reset", failures, masters, remedy)
        return {
            MessageQueue(item.topic, broker, item.queue_id): item.offset
            for broker, answer in answers.items()
            for item in answer.offsets
        }

    def _targets(
        self,
        ids: Mapping[str, Sequence[int]],
        described: Mapping[str, broker_pb2.DescribeTopicResponse],
        masters: Mapping[str, str],
    ) -> dict[MessageQueue, int]:
        request = self._request
        found = {
            MessageQueue(request.topic, broker, status.queue_id): status
            for broker, chosen in ids.items()
            for status in described[broker].queues
            if not chosen or status.queue_id in chosen
        }
        if request.WhichOneof("to") == "offset":
            return dict.fromkeys(found, request.offset)
        if request.start.at == broker_pb2.START_AT_EARLIEST:
            return {queue: status.min_offset for queue, status in found.items()}
        if request.start.at == broker_pb2.START_AT_LATEST:
            return {queue: status.max_offset for queue, status in found.items()}
        return self._masters.offsets_at(found, request.start.timestamp_ms, masters)

    def _masters_of(
        self, topic: str, chosen: Iterable[str] | None
    ) -> tuple[dict[str, str], dict[str, broker_pb2.DescribeTopicResponse]]:
        masters = self._masters.find(to_change=True)
        asked = masters if chosen is None else {broker: masters[broker] for broker in chosen if broker in masters}
        described = self._masters.describe(topic, asked)
        # Slaves show the queues of a broker whose master is away.
        carriers = sorted({*described, *self._routed(topic)})
        if not carriers:
            raise TopicNotFound.nowhere(topic)
        wanted = carriers if chosen is None else list(chosen)
        absent = [broker for broker in wanted if broker not in carriers]
        if absent:
            raise QueueNotFound(f"topic {topic} is not on {', '.join(absent)}: it is on {', '.join(carriers)}")
        missing = [broker for broker in wanted if broker not in described]
        if missing:
            raise Unavailable(
                f"topic {topic} is also on {', '.join(missing)}, which has no master now: nothing was changed; start "
                "it, or choose queues of other brokers"
            )
        return {broker: masters[broker] for broker in wanted}, described

    def _routed(self, topic: str) -> list[str]:
        try:
            return [data.broker_name for data in self._masters.route(topic).queues]
        except TopicNotFound:
            return []  # which masters may carry all the same: it was made a moment ago


def ids_by_broker(topic: str, queues: Iterable[MessageQueue]) -> dict[str, list[int]]:
    """Return ids of queues by broker name, both sorted. Raises `InvalidArgument` for none, or one of another topic."""
    ids: dict[str, list[int]] = {}
    for queue in sorted(set(queues)):
        if queue.topic != topic:
            raise InvalidArgument(f"queue {queue} is not one of topic {topic}")
        ids.setdefault(queue.broker_name, []).append(queue.queue_id)
    if not ids:
        raise InvalidArgument("queues is empty: name some, or leave it out for all")
    return ids


def _check_queues(
    topic: str,
    ids: Mapping[str, Sequence[int]],
    described: Mapping[str, broker_pb2.DescribeTopicResponse],
    offset: int | None,
) -> None:
    outside: list[str] = []
    for broker in ids:
        found = {status.queue_id: status for status in described[broker].queues}
        for queue_id in ids[broker] or found:
            name = MessageQueue(topic, broker, queue_id)
            if queue_id not in found:
                raise QueueNotFound(
                    f"there is no queue {name}: {broker} has {count_of(len(found), 'queue')} of the topic"
                )
            first, end = found[queue_id].min_offset, found[queue_id].max_offset
            if offset is not None and not first <= offset <= end:
                outside.append(f"{name} ({first} to {end})")
    if outside:
        remedy = "choose the queues that have it (--queue)"
        if offset is not None and offset >= LEAST_MS:
            remedy = f"if it is a time, in milliseconds since 1970, write {offset}ms"
        raise OffsetOutOfRange(f"offset {offset} is not in {some_of(outside)}: nothing was changed; {remedy}")


def reset_request(group: str, topic: str, to: Start, force: bool) -> broker_pb2.ResetOffsetsRequest:
    """Return what to ask for about all queues of a broker. Raises `InvalidArgument`."""
    request = broker_pb2.ResetOffsetsRequest(group=group, topic=topic, force=force)
    target = offset_or_start(to, "to")
    if not isinstance(target, int):
        request.start.CopyFrom(target)
    else:
        request.offset = target
    return request


def _for_queues(request: broker_pb2.ResetOffsetsRequest, ids: Iterable[int]) -> broker_pb2.ResetOffsetsRequest:
    copy = broker_pb2.ResetOffsetsRequest(queue_ids=ids)
    copy.MergeFrom(request)
    return copy
