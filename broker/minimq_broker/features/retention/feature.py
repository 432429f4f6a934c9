"""Retention as a feature of the broker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from minimq_broker.calls.administration import answering
from minimq_broker.calls.engine import Engine
from minimq_broker.features.feature import Feature, Handler, Role, Serving
from minimq_broker.features.retention import NAME
from minimq_broker.features.retention.flags import RetentionFlags
from minimq_broker.features.retention.retention import RetentionOptions, RetentionRules
from minimq_broker.features.retention.retention_service import Retention
from minimq_broker.features.retention.topic_retention import is_dead_letters, own_rules, with_rules
from minimq_broker.state.facts import Topic
from minimq_common.errors import InvalidArgument
from minimq_proto.v1 import broker_pb2, retention_pb2


class RetentionServing(Serving):
    service = retention_pb2.DESCRIPTOR.services_by_name["Retention"]

    def __init__(self, engine: Engine, options: RetentionFlags) -> None:
        self._options = RetentionOptions(
            RetentionRules(math.ceil(options.retention_s * 1000), options.retention_bytes),
            RetentionRules(math.ceil(options.dead_letter_retention_s * 1000), options.dead_letter_bytes),
        )
        self._task = Retention(
            engine.store,
            engine.counters,
            options.upkeep_interval_s,
            engine.lowest_needed,
            engine.clock.kept_ms,
            self._options,
        )
        self.tasks = (self._task,)
        engine.disk_listeners.append(self._task.look_now)

    def began(self, role: Role) -> dict[str, Handler]:
        return {"GetRules": answering(self._rules)}

    async def _rules(self, _: retention_pb2.GetRulesRequest) -> retention_pb2.GetRulesResponse:
        rules = self._options.rules
        return retention_pb2.GetRulesResponse(retention_ms=rules.max_age_ms, retention_bytes=rules.max_bytes)

    def metrics(self, prefix: str) -> Iterator[Any]:
        from minimq_common.serving.metrics import counter, gauge  # late: only metrics need it

        deleted = "Dead letters that were deleted: too many, or too old."
        yield counter(f"{prefix}_dead_letters_deleted_total", deleted, self._task.dead_letters_deleted)
        used = "Disk used by dead letters, and by the record of those that were resent or deleted."
        yield gauge(f"{prefix}_dead_letter_bytes", used, self._task.dead_letter_bytes)


class RetentionFeature(Feature):
    name = NAME
    serve = RetentionServing

    def set_topic(self, topic: Topic, former: Topic | None, request: Any) -> Topic:
        if is_dead_letters(topic):
            topic = msgspec.structs.replace(topic, lasting=True)
        given = {field.name: value for field, value in request.ListFields()}
        own = own_rules(topic)
        age_ms, size = given.get("retention_ms", own.max_age_ms), given.get("retention_bytes", own.max_bytes)
        if (age_ms or size) and topic.key_queues:
            raise InvalidArgument(
                f"topic {topic.name!r} keeps the latest message of each key, and has no retention of its own"
            )
        return with_rules(topic, age_ms, size)

    def describe_topic(self, topic: Topic, described: broker_pb2.Topic) -> None:
        own = own_rules(topic)
        described.retention_ms, described.retention_bytes = own.max_age_ms, own.max_bytes
