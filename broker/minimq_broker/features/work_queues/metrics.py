"""The metrics of work queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from minimq_broker.calls.engine import Engine
from minimq_broker.features.work_queues.pop_runs import PopKey
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.metrics.backlog import MAX_SERIES, OTHERS, Backlog
from minimq_common.names import DEAD_LETTER_PREFIX
from minimq_common.serving.metrics import counter, gauges


def pop_metrics(prefix: str, engine: Engine, blocking: Mapping[PopKey, int], missed: int) -> Iterator[Metric]:
    backlog = Backlog(engine.store, MAX_SERIES)
    names, held = backlog.names(), dict[tuple[int, str], int]()
    for (group, topic_id, _), queue in popped_queues(engine.store.state).copy().items():
        if topic_id in names and not group.startswith(DEAD_LETTER_PREFIX):
            held[topic_id, group] = held.get((topic_id, group), 0) + queue.held
    yield counter(
        f"{prefix}_group_missed_messages_total",
        "Messages that were deleted before a group that takes them one by one had settled them.",
        missed,
    )
    yield gauges(
        f"{prefix}_dead_letters",
        "Stored dead letters of a group.",
        ("group",),
        (((group,), count) for group, count in _dead_letters(engine, backlog).items()),
    )
    yield gauges(
        f"{prefix}_group_in_flight_messages",
        "Messages of a topic, taken one by one, that consumers of a group have.",
        ("group", "topic"),
        backlog.bounded(held).items(),
    )
    yield gauges(
        f"{prefix}_group_blocking_offset",
        "Offset of the message that must be settled before a work queue delivers new ones.",
        ("group", "topic", "queue"),
        (
            ((key.group, topic, str(key.queue_id)), offset)
            for key, offset in [*blocking.items()][:MAX_SERIES]
            if (topic := engine.store.state.topic_name(key.topic_id)) is not None
        ),
    )


def _dead_letters(engine: Engine, backlog: Backlog) -> dict[str, int]:
    found: dict[str, int] = {}
    for topic in sorted(engine.store.state.topics.copy().values(), key=lambda topic: topic.topic_id):
        if topic.name.startswith(DEAD_LETTER_PREFIX):
            name = topic.name.removeprefix(DEAD_LETTER_PREFIX) if len(found) < MAX_SERIES else OTHERS
            found[name] = found.get(name, 0) + backlog.stored(topic)
    return found
