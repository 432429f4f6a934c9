"""Spans of handlers by OpenTelemetry; see docs/tracing.md. Needs `minimq[otel]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from faststream import BaseMiddleware
from faststream.exceptions import AckMessage
from faststream.message import StreamMessage

from faststream_minimq.message import MinimqMessage
from faststream_minimq.subscriber import MinimqSubscriber
from minimq import ReceivedMessage
from minimq.otel import processing

if TYPE_CHECKING:
    from faststream import ContextRepo


class MinimqTelemetryMiddleware(BaseMiddleware):
    """Makes the span of each call of a handler, in which it is current: what the handler sends is in the same trace.

        broker = MinimqBroker(..., middlewares=[MinimqTelemetryMiddleware])

    Spans of what is sent, received and settled come from `MinimqInstrumentor`, or `opentelemetry-instrument`. Messages
    of a `TestMinimqBroker` have none.
    """

    def __init__(self, msg: Any | None, /, *, context: ContextRepo) -> None:  # noqa: ANN401 - as declared
        super().__init__(msg, context=context)
        self._span = ExitStack()

    async def consume_scope(
        self, call_next: Callable[[StreamMessage[Any]], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:  # noqa: ANN401 - what the handler returns
        """Begin the span, and call the handler."""
        raw = msg.raw_message
        messages = raw if isinstance(raw, tuple) else (raw,)
        subscriber = msg.settlement if isinstance(msg, MinimqMessage) else None
        if isinstance(subscriber, MinimqSubscriber) and all(isinstance(each, ReceivedMessage) for each in messages):
            self._span.enter_context(processing(messages, group=subscriber.group or ""))
        return await call_next(msg)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool:
        """End the span, once the answer of the handler is sent."""
        if isinstance(exc_val, AckMessage):  # which is a way to say that all is well
            self._span.close()
        else:
            self._span.__exit__(exc_type, exc_val, exc_tb)
        return False
