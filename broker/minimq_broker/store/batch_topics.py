"""Errors of batches that do not fit the topic for which they are sent."""

from __future__ import annotations

from minimq_broker.core.facts import Topic
from minimq_broker.store.jobs import AppendJob
from minimq_common.errors import InvalidArgument


def wrong_kind(topic: Topic) -> str:
    """Return the error of a batch that has a message group for a topic without these, or lacks it."""
    if topic.fifo:
        return f"topic {topic.name!r} is a FIFO topic: give each message a message group"
    return (
        f"topic {topic.name!r} is not a FIFO topic: send without a message group, or to a topic that was created with "
        "`minimq topic create NAME --fifo`"
    )


def check_same_topic(job: AppendJob, topic: Topic, topic_id: int) -> None:
    """Raise `InvalidArgument` when a batch that was sent before is in another topic."""
    if topic_id != topic.topic_id:
        raise InvalidArgument(
            f"batch {job.header.sequence} of producer {job.header.producer_id:016x} is stored in another topic "
            f"already, not in {job.topic!r}: a new batch needs a new number"
        )


def check_may_wait(job: AppendJob, topic: Topic) -> None:
    """Raise `InvalidArgument` for a delayed batch in a transaction, or of a FIFO topic."""
    if job.transaction is not None:
        raise InvalidArgument("a message of a transaction cannot be delayed: send it by itself, or without a delay")
    if topic.fifo:
        raise InvalidArgument(
            f"topic {topic.name!r} is a FIFO topic, whose messages keep their order: they cannot be delayed"
        )
