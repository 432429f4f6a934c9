"""Answers to one stream of a consumer that takes messages one by one, gathered into responses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from minimq_broker.services.pop_reader import DeliveredRuns, PopReader
from minimq_common.large_fields import field_head
from minimq_common.rpc import to_failure
from minimq_common.security.byte_rate import ByteRate
from minimq_common.stream_writer import AnswerStream
from minimq_common.unsent import Unsent
from minimq_proto.v1 import broker_pb2

#: Results that may wait for a client that does not read; with more, nothing is received from it.
MAX_WAITING = 1_000
#: A response is about this large, and never larger by more than what one take brings.
_RESPONSE_BYTES = 1 << 20


class PopAnswers(AnswerStream):
    """The answers to one stream; the batches of delivered messages are read as they are written."""

    def __init__(
        self,
        context: Any,  # noqa: ANN401 - the context of any stream
        reader: PopReader,
        soon: Callable[[Callable[[], None]], object],
        unsent: Unsent,
        rate: ByteRate | None,
    ) -> None:
        super().__init__(context, bytes, soon, unsent, rate)
        self._reader = reader
        #: Has a take that waits answered at once, by its id.
        self.cancels: dict[int, Callable[[], None]] = {}

    def next_size(self) -> int:
        """Return how large the next response will be, about, in bytes."""
        return _RESPONSE_BYTES if any(isinstance(answer, DeliveredRuns) for answer in self._answers) else 0

    def add(self, answer: broker_pb2.PopResult | DeliveredRuns) -> None:
        """Write a result; messages that were delivered to a client that is gone go to others."""
        if self.cancels:
            self.cancels.pop(answer.take_id if isinstance(answer, DeliveredRuns) else answer.id, None)
        if not self.is_closed:
            super().add(answer)
        elif isinstance(answer, DeliveredRuns):
            self._reader.give_back(answer)

    def fail(self, number: int, error: Exception) -> None:
        """Answer a take or a settle by an error."""
        self.add(broker_pb2.PopResult(id=number, failure=to_failure(error)))

    def close(self) -> None:
        """Write no more."""
        super().close()
        for cancel in [*self.cancels.values()]:
            cancel()
        answers, self._answers = self._answers, []
        for answer in answers:
            if isinstance(answer, DeliveredRuns):
                self._reader.give_back(answer)

    def take(self) -> bytes:
        """Return the waiting results, up to the size of a response."""
        parts: list[bytes] = []
        size = taken = 0
        with ExitStack() as lent:  # batches are copied once, from the file into the response
            for answer in self._answers:
                if size >= _RESPONSE_BYTES:
                    break
                if isinstance(answer, DeliveredRuns):
                    result = self._reader.encode(answer, lent)
                else:
                    result = [answer.SerializeToString()]
                result_size = sum(map(len, result))
                parts += field_head(broker_pb2.PopResponse.RESULTS_FIELD_NUMBER, result_size), *result
                size += result_size
                taken += 1
            data = b"".join(parts)
        del self._answers[:taken]
        self.expected -= taken
        return data
