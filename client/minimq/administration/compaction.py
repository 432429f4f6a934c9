"""The rules of topics that are compacted by key."""

from __future__ import annotations

from dataclasses import dataclass

from minimq_common.errors import InvalidArgument
from minimq_common.wire.protocol_bounds import YEAR_MS
from minimq_common.words import kind_of
from minimq_proto.v1 import broker_pb2


@dataclass(frozen=True, slots=True)
class Compaction:
    """The rules by which a topic is compacted.

    Of each key the latest message is kept, and older ones are removed in the background.

    Attributes:
        min_lag_s: seconds for which new messages are not compacted.
        tombstone_s: seconds for which a tombstone stays after its first compaction. A reader that reads the whole topic
            within this time misses no deletion.
        dirty_ratio: compaction begins when this share of the stored data is not compacted yet, 0.01 to 1. A smaller
            share saves disk and costs CPU time.

    Raises:
        InvalidArgument: a number is out of range.
    """

    min_lag_s: float = 0.0
    tombstone_s: float = 86_400.0
    dirty_ratio: float = 0.5

    def __post_init__(self) -> None:
        for name in ("min_lag_s", "tombstone_s", "dirty_ratio"):
            given: object = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise InvalidArgument(f"{name} is {kind_of(given)}: give a number")
        for name, value in (("min_lag_s", self.min_lag_s), ("tombstone_s", self.tombstone_s)):
            if not 0 <= value * 1000 <= YEAR_MS:
                raise InvalidArgument(f"{name} is {value}: it must be 0 to {YEAR_MS // 1000} (366 days)")
        if not 0.01 <= self.dirty_ratio <= 1:
            raise InvalidArgument(f"dirty_ratio is {self.dirty_ratio}: it must be 0.01 to 1")


def check_compaction(rules: object) -> None:
    """Raise `InvalidArgument` unless these are the rules of a compacted topic, or None for one that is not."""
    if rules is not None and not isinstance(rules, Compaction):
        raise InvalidArgument(f"compaction is {kind_of(rules)}: give minimq.Compaction(), or None")


def compaction_to_wire(rules: Compaction, key_queues: int) -> broker_pb2.Compaction:
    """Return the rules for a topic with so many queues on all brokers as they travel."""
    return broker_pb2.Compaction(
        key_queues=key_queues,
        min_lag_ms=round(rules.min_lag_s * 1000),
        tombstone_ms=round(rules.tombstone_s * 1000),
        dirty_percent=round(rules.dirty_ratio * 100),
    )


def compaction_from_wire(topic: broker_pb2.Topic) -> Compaction | None:
    """Return the rules of a topic; None if it is not compacted."""
    if not topic.HasField("compaction"):
        return None
    rules = topic.compaction
    return Compaction(rules.min_lag_ms / 1000, rules.tombstone_ms / 1000, rules.dirty_percent / 100)
