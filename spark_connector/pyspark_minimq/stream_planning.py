"""The progress of a stream, and the end of its next micro-batch. Decides only, asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import (
    Carrier,
    LookupResult,
    OffsetRange,
    Offsets,
    QueueName,
    StoredOffsets,
    Subscription,
    TopicId,
    resolve,
)

#: Of the JSON in the checkpoint.
_VERSION = 2

_ByQueue = Mapping[QueueName, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The progress of a stream, which Spark keeps in the checkpoint for each micro-batch.

    It holds where its micro-batch begins as well, although Spark hands that on, too: when the very first micro-batch
    has failed, Spark asks for the initial offset anew, and `latest` is somewhere else by then.
    """

    #: The first offset of each queue that is not part of the micro-batch.
    end: _ByQueue
    #: The first offset of each queue that is part of it; None where a stream begins, before any micro-batch.
    start: _ByQueue | None = None
    topic_ids: Mapping[Carrier, TopicId] = field(default_factory=dict)
    #: Messages that there were after it when it was planned; None where that is not known.
    behind: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the offset that `to_json` wrote."""
        if value.get("v") != _VERSION:
            raise MinimqSparkError(
                f"the checkpoint holds offsets of version {value.get('v')!r}, this is version {_VERSION}: go on with "
                "the release of minimq that wrote it, or begin with another checkpointLocation"
            )
        try:
            end = _from_tree(value["end"])
            topic_ids = {
                Carrier(topic, broker): TopicId(*map(_whole, topic_id))
                for topic, brokers in value["topic_ids"].items()
                for broker, topic_id in brokers.items()
            }
            return cls(
                end=end,
                start=_from_tree(value["from"]) if "from" in value else None,
                topic_ids={queue.carrier: topic_ids[queue.carrier] for queue in end},
                behind=_whole(value["behind"]) if "behind" in value else None,
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise MinimqSparkError(
                f"the checkpoint holds offsets that are damaged ({error!r}): put a copy of it back, or begin with "
                "another checkpointLocation"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """Return what Spark can keep. Offsets have the form that the options for offsets have."""
        ids: dict[str, dict[str, TopicId]] = {}
        for (topic, broker), topic_id in sorted(self.topic_ids.items()):
            ids.setdefault(topic, {})[broker] = topic_id
        begun = {} if self.start is None else {"from": to_tree(self.start)}
        left = {} if self.behind is None else {"behind": self.behind}
        return {"v": _VERSION, **begun, "end": to_tree(self.end), "topic_ids": ids, **left}

    def ranges(self) -> list[OffsetRange]:
        """Return what the micro-batch holds, sorted; queues of which it has nothing are left out."""
        start = self.start or self.end
        ranges = (
            OffsetRange(queue, start.get(queue, end), end, topic_id=self.topic_ids[queue.carrier])
            for queue, end in sorted(self.end.items())
        )
        return [part for part in ranges if part.start < part.end]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a micro-batch."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    #: Fewest messages, unless `max_delay_s` is over.
    min_offsets: int | None = None
    #: Seconds after the last micro-batch.
    max_delay_s: float = 900.0


@dataclass(frozen=True, slots=True)
class AvailableOffsets:
    """The messages that are there to be read."""

    starts: _ByQueue
    ends: _ByQueue
    topic_ids: Mapping[Carrier, TopicId]
    #: What will never be read because it is not stored any more, a sentence each.
    losses: tuple[str, ...] = ()

    @property
    def available(self) -> int:
        """The number of these messages."""
        return sum(self.ends.values()) - sum(self.starts.values())

    def until(self, ends: _ByQueue) -> StreamOffset:
        """Return the micro-batch that goes as far as that."""
        return StreamOffset(ends, self.starts, self.topic_ids, sum(self.ends.values()) - sum(ends.values()))


def first_offset(
    bounds: Mapping[QueueName, StoredOffsets], starting: Offsets, *, fail_on_data_loss: bool
) -> StreamOffset:
    """Return where a stream begins."""
    at = resolve("startingOffsets", starting, bounds, fail_on_data_loss=fail_on_data_loss)
    return StreamOffset(dict(sorted(at.items())), None, _ids(bounds))


def look_ahead(done: StreamOffset, sight: LookupResult, subscription: Subscription) -> AvailableOffsets:
    """Return the messages that are there after those that the stream has read.

    A queue whose broker does not answer stays where it is, and so does one of which a slave has less than was read.
    A new queue begins with its first message. One that is hidden by now is read to its end. One that the subscription
    does not include any more is dropped, which is a loss.
    """
    starts: dict[QueueName, int] = {}
    ends: dict[QueueName, int] = {}
    losses: list[str] = []
    answered = {queue.carrier for queue in sight.bounds} | sight.absent
    for queue, at in done.end.items():
        carrier = queue.carrier
        bounds = sight.bounds.get(queue)
        if not subscription.includes(queue):
            losses.append(
                f"queue {queue}, read up to offset {at}, is in the checkpoint and not in the options any more"
            )
        elif bounds is not None:
            starts[queue], ends[queue], loss = _go_on(queue, at, bounds, done.topic_ids.get(carrier, bounds.topic_id))
            losses += loss
        elif carrier in answered:
            losses.append(f"queue {queue}, read up to offset {at}, was deleted")
        else:
            starts[queue] = ends[queue] = at
    for queue, bounds in subscription.chosen(sight.bounds).items():
        if queue not in done.end:
            starts[queue], ends[queue] = bounds.first, bounds.end
    carriers = {queue.carrier for queue in starts}
    certain = {queue: bounds for queue, bounds in sight.bounds.items() if not bounds.from_slave}
    known = {**_ids(sight.bounds), **done.topic_ids, **_ids(certain)}
    ids = {carrier: at for carrier, at in known.items() if carrier in carriers}
    return AvailableOffsets(dict(sorted(starts.items())), dict(sorted(ends.items())), ids, tuple(losses))


def _go_on(queue: QueueName, at: int, bounds: StoredOffsets, topic_id: TopicId) -> tuple[int, int, list[str]]:
    first, end = bounds.first, bounds.end
    if bounds.from_slave:  # which may lack the newest messages, or know the topic as it was before
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


def is_too_little(available: int, limits: BatchLimits, waited_s: float) -> bool:
    """Tell whether to wait for more before the next micro-batch."""
    return available < (limits.min_offsets or 0) and waited_s < limits.max_delay_s


def limit_ends(outlook: AvailableOffsets, limits: BatchLimits, message_bytes: Callable[[QueueName], float]) -> _ByQueue:
    """Return where a micro-batch ends in each queue, so that it keeps to the limits.

    Each queue gives its share of what it has, so that none runs ahead in time. A micro-batch holds at least one
    message if there is any.
    """
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


def _shares(sizes: _ByQueue, limit: int, turn: int) -> dict[QueueName, int]:
    """Return sizes whose sum is at most the limit: one for each queue that has any, and the rest in proportion.

    The turn decides who gets what is left by rounding, and who has to wait when there are more queues than messages.
    """
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


# ---- JSON ----------------------------------------------------------------------------------------


def to_tree(offsets: _ByQueue) -> dict[str, dict[str, dict[str, int]]]:
    """Return offsets by topic, broker and queue, as the options take them."""
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return tree


def _from_tree(tree: Mapping[str, Any]) -> dict[QueueName, int]:
    return {
        QueueName(topic, broker, _whole(int(queue))): _whole(offset)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r:.100} is no whole number from 0 on")
    return value


def _ids(bounds: Mapping[QueueName, StoredOffsets]) -> dict[Carrier, TopicId]:
    return {queue.carrier: at.topic_id for queue, at in bounds.items()}


def describe_losses(losses: Iterable[str]) -> str:
    """Return what was lost in one line."""
    told = list(losses)
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return "; ".join(told[:3]) + more
