"""Work queues at one broker: the service of the current term, and their figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from minimq_broker.calls.administration import answering
from minimq_broker.calls.engine import Engine
from minimq_broker.features.feature import Handler, OffsetKey, Role, Serving
from minimq_broker.features.work_queues.describing import describe
from minimq_broker.features.work_queues.pop_runs import PopKey
from minimq_broker.features.work_queues.settling import Settled
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.features.work_queues.work_queue_service import WorkQueueService
from minimq_broker.options import KernelOptions
from minimq_proto.v1 import broker_pb2, work_queues_pb2


class WorkServing(Serving):
    service = work_queues_pb2.DESCRIPTOR.services_by_name["WorkQueues"]

    def __init__(self, engine: Engine, options: KernelOptions) -> None:
        self._engine = engine
        self._grace_s = options.session_grace_s
        self._service: WorkQueueService | None = None
        #: Messages that retention deleted before their group had settled them.
        self._missed = Counter[str]()
        engine.rejections.counts.update({"pops": 0, "pop-spans": 0, "pop-unsettled": 0})

    def began(self, role: Role) -> dict[str, Handler]:
        if self._service is not None:
            self._service.retire()
        self._service = WorkQueueService(self._engine, role.starts, self._grace_s, self._missed)
        described = partial(describe, self._engine, lambda: self._blocked)
        return {"Pop": self._service.serve, "Describe": answering(described)}

    def progress_of(self, append: broker_pb2.AtomicAppend) -> Settled | None:
        return None if self._service is None else self._service.progress_of(append)

    @property
    def _blocked(self) -> dict[PopKey, int]:
        return {} if self._service is None else self._service.blocked

    def lag(self, key: OffsetKey, first: int, end: int) -> int | None:
        queue = popped_queues(self._engine.store.state).get(key)
        return None if queue is None else queue.unsettled_before(end) - queue.unsettled_before(first)

    def metrics(self, prefix: str) -> Iterable[Any]:
        from minimq_broker.features.work_queues.metrics import pop_metrics  # late: only metrics need it

        return pop_metrics(prefix, self._engine, self._blocked, self._missed.total())
