"""The stored offsets of queues, as their brokers describe them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from minimq_common.model import TopicId


class TopicOnBroker(NamedTuple):
    topic: str
    broker_name: str


class StoredOffsets(NamedTuple):
    first: int
    end: int
    topic_id: TopicId = TopicId(0, 0)
    #: Consumers see the queue. A queue that is hidden now may still have messages.
    is_shown: bool = True
    #: A slave has answered, which may lack the newest messages.
    from_slave: bool = False
    #: Term of the log to which the offsets belong; 0 if unknown.
    term: int = 0
    is_readable: bool = True
