"""The progress of a stream, and the end of its next micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from minimq.consuming.stored_offsets import StoredOffsets, TopicOnBroker
from minimq_common.model import MessageQueue, TopicId
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import LookupResult, OffsetRange, Offsets, Subscription, place_of, resolve

#: Version of the JSON in the checkpoint.
_VERSION = 2

_ByQueue = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The progress of a stream, which Spark stores in the checkpoint for each micro-batch.

    Contains the start of the micro-batch, although Spark passes that, too: if the very first micro-batch has failed,
    Spark asks for the initial offset again, and `latest` has changed by then.
    """

    #: By queue: the offset after the micro-batch.
    end: _ByQueue
    #: By queue: the first offset of the micro-batch; None at the start of a stream, before any micro-batch.
    start: _ByQueue | None = None
    topic_ids: Mapping[TopicOnBroker, TopicId] = field(default_factory=dict)
    #: Number of messages after the micro-batch when it was planned; None if unknown.
    behind: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the offset that `to_json` wrote. Raises `MinimqSparkError`."""
        if value.get("v") != _VERSION:
            raise MinimqSparkError(
                f"the checkpoint holds offsets of version {value.get('v')!r}, this is version {_VERSION}: go on with "
                "the release of minimq that wrote it, or begin with another checkpointLocation"
            )
        try:
            end = _from_tree(value["end"])
            topic_ids = {
                TopicOnBroker(topic, broker): TopicId(*map(_whole, topic_id))
                for topic, brokers in value["topic_ids"].items()
                for broker, topic_id in brokers.items()
            }
            return cls(
                end=end,
                start=_from_tree(value["from"]) if "from" in value else None,
                topic_ids={place_of(queue): topic_ids[place_of(queue)] for queue in end},
                behind=_whole(value["behind"]) if "behind" in value else None,
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise MinimqSparkError(
                f"the checkpoint holds offsets that are damaged ({error!r}): put a copy of it back, or begin with "
                "another checkpointLocation"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """Return JSON for the checkpoint. Offsets have the same format as in the options."""
        ids: dict[str, dict[str, TopicId]] = {}
        for (topic, broker), topic_id in sorted(self.topic_ids.items()):
            ids.setdefault(topic, {})[broker] = topic_id
        begun = {} if self.start is None else {"from": to_tree(self.start)}
        left = {} if self.behind is None else {"behind": self.behind}
        return {"v": _VERSION, **begun, "end": to_tree(self.end), "topic_ids": ids, **left}

    def ranges(self) -> list[OffsetRange]:
        """Return the non-empty ranges of the micro-batch, sorted."""
        start = self.start or self.end
        ranges = (
            OffsetRange(queue, start.get(queue, end), end, topic_id=self.topic_ids[place_of(queue)])
            for queue, end in sorted(self.end.items())
        )
        return [part for part in ranges if part.start < part.end]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_offsets: int | None = None
    max_bytes: int | None = None
    #: Wait for this many messages, but at most for `max_delay_s`.
    min_offsets: int | None = None
    #: Seconds since the last micro-batch.
    max_delay_s: float = 900.0


@dataclass(frozen=True, slots=True)
class AvailableOffsets:
    starts: _ByQueue
    ends: _ByQueue
    topic_ids: Mapping[TopicOnBroker, TopicId]
    #: One sentence for each loss: messages that are not stored any more and will never be read.
    losses: tuple[str, ...] = ()

    @property
    def available(self) -> int:
        """The number of these messages."""
        return sum(self.ends.values()) - sum(self.starts.values())

    def until(self, ends: _ByQueue) -> StreamOffset:
        """Return the micro-batch from `starts` to `ends`."""
        return StreamOffset(ends, self.starts, self.topic_ids, sum(self.ends.values()) - sum(ends.values()))


def first_offset(
    bounds: Mapping[MessageQueue, StoredOffsets], starting: Offsets, *, fail_on_data_loss: bool
) -> StreamOffset:
    at = resolve("startingOffsets", starting, bounds, fail_on_data_loss=fail_on_data_loss)
    return StreamOffset(dict(sorted(at.items())), None, _ids(bounds))


def messages_after(done: StreamOffset, sight: LookupResult, subscription: Subscription) -> AvailableOffsets:
    """Return the messages that are stored after those that the stream has read.

    A queue makes no progress if its broker does not answer, or if a slave answers and has less than was read. A new
    queue starts at its first message. A hidden queue is read to its end. A queue that the subscription does not include
    any more is dropped, and reported as a loss.
    """
    starts: dict[MessageQueue, int] = {}
    ends: dict[MessageQueue, int] = {}
    losses: list[str] = []
    answered = {place_of(queue) for queue in sight.bounds} | sight.absent
    for queue, at in done.end.items():
        place = place_of(queue)
        bounds = sight.bounds.get(queue)
        if not subscription.includes(queue):
            losses.append(
                f"queue {queue}, read up to offset {at}, is in the checkpoint and not in the options any more"
            )
        elif bounds is not None:
            starts[queue], ends[queue], loss = _go_on(queue, at, bounds, done.topic_ids.get(place, bounds.topic_id))
            losses += loss
        elif place in answered:
            losses.append(f"queue {queue}, read up to offset {at}, was deleted")
        else:
            starts[queue] = ends[queue] = at
    for queue, bounds in subscription.chosen(sight.bounds).items():
        if queue not in done.end:
            starts[queue], ends[queue] = bounds.first, bounds.end
    carriers = {place_of(queue) for queue in starts}
    certain = {queue: bounds for queue, bounds in sight.bounds.items() if not bounds.from_slave}
    known = {**_ids(sight.bounds), **done.topic_ids, **_ids(certain)}
    ids = {place: at for place, at in known.items() if place in carriers}
    return AvailableOffsets(dict(sorted(starts.items())), dict(sorted(ends.items())), ids, tuple(losses))


def _go_on(queue: MessageQueue, at: int, bounds: StoredOffsets, topic_id: TopicId) -> tuple[int, int, list[str]]:
    first, end = bounds.first, bounds.end
    if bounds.from_slave:  # it may lack the newest messages, or a new creation of the topic
        return at, max(at, end) if topic_id == bounds.topic_id else at, []
    if topic_id != bounds.topic_id:
        return (
            first,
            end,
            [f"queue {queue}, read up to offset {at}, was deleted and created again: it has {first} to {end}"],
        )
    if at < first:
        return (
            first,
            end,
            [f"offsets {at} to {first - 1} of queue {queue} were deleted unread: it has {first} to {end}"],
        )
    if at > end:
        return end, end, [f"queue {queue}, read up to offset {at}, has lost its end: it has {first} to {end}"]
    return at, end, []


def is_below_minimum(available: int, limits: BatchLimits, waited_s: float) -> bool:
    """Tell whether to wait for more messages before the next micro-batch."""
    return available < (limits.min_offsets or 0) and waited_s < limits.max_delay_s


def limit_ends(
    outlook: AvailableOffsets, limits: BatchLimits, message_bytes: Callable[[MessageQueue], float]
) -> _ByQueue:
    """Return the ends of a micro-batch within the limits."""
    sizes = {queue: end - outlook.starts[queue] for queue, end in outlook.ends.items()}
    if limits.max_bytes is not None:
        weights = {queue: message_bytes(queue) for queue, size in sizes.items() if size}
        total = sum(sizes[queue] * weight for queue, weight in weights.items())
        if total > limits.max_bytes:
            messages = int(sum(sizes.values()) * limits.max_bytes / total)
            sizes = _shares(sizes, max(messages, 1), _turn(outlook))
    if limits.max_offsets is not None:
        sizes = _shares(sizes, limits.max_offsets, _turn(outlook))
    return {queue: outlook.starts[queue] + size for queue, size in sizes.items()}


def _turn(outlook: AvailableOffsets) -> int:
    return sum(outlook.starts.values())


def _shares(sizes: _ByQueue, limit: int, turn: int) -> dict[MessageQueue, int]:
    # The result adds up to `limit` at most: one message per non-empty queue, and the rest in proportion. `turn` rotates
    # which queues get the remainder, and which ones have to wait if there are more queues than messages.
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    waiting = [queue for queue, size in sizes.items() if size]
    shares = dict.fromkeys(sizes, 0)
    if limit >= len(waiting):
        left, rest = limit - len(waiting), total - len(waiting)
        shares |= {queue: 1 + (sizes[queue] - 1) * left // rest for queue in waiting}
    left = limit - sum(shares.values())
    cut = [queue for queue in waiting if shares[queue] < sizes[queue]]
    turn %= len(cut)
    for queue in (cut[turn:] + cut[:turn])[:left]:
        shares[queue] += 1
    return shares


def to_tree(offsets: _ByQueue) -> dict[str, dict[str, dict[str, int]]]:
    """Return offsets by topic, broker and queue, in the format of the options."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return tree


def _from_tree(tree: Mapping[str, Any]) -> dict[MessageQueue, int]:
    return {
        MessageQueue(topic, broker, _whole(int(queue))): _whole(offset)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.100} is no whole number from 0 on")
    return value


def _ids(bounds: Mapping[MessageQueue, StoredOffsets]) -> dict[TopicOnBroker, TopicId]:
    return {place_of(queue): at.topic_id for queue, at in bounds.items()}


def describe_losses(losses: Iterable[str]) -> str:
    told = list(losses)
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return "; ".join(told[:3]) + more
