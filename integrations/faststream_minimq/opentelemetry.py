"""OpenTelemetry spans of handlers; see docs/tracing.md. Needs `minimq[otel]`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from faststream import BaseMiddleware
from faststream.exceptions import AckMessage
from faststream.message import StreamMessage
from faststream.opentelemetry import Baggage
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach

from faststream_minimq.message import MinimqMessage
from faststream_minimq.subscriber import MinimqSubscriber
from minimq.otel import OtelSend, processing

if TYPE_CHECKING:
    from faststream import ContextRepo
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider


#: The name of `CurrentBaggage` in FastStream's context.
_BAGGAGE = "baggage"


class MinimqTelemetryMiddleware:
    """Makes a span for each published message, and one for each call of a handler, which is current during the call.

    So a message, its retries, and the messages that its handler publishes are one trace:

        broker = MinimqBroker(..., middlewares=[MinimqTelemetryMiddleware()])

    Handlers may take the `CurrentSpan` and `CurrentBaggage` of `faststream.opentelemetry`. The published messages of a
    handler have its `CurrentBaggage`, with its changes.

    Spans for receiving and settling come from `MinimqInstrumentor`, or `opentelemetry-instrument`. Messages of a
    `TestMinimqBroker` have no spans.

    Args:
        tracer_provider: makes the spans; None for the process's provider.
        meter_provider: makes the metrics; None for the process's provider.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        #: The broker passes it to its producer.
        self.send_interceptor = OtelSend(tracer_provider, meter_provider)
        self._processing = partial(processing, tracer_provider=tracer_provider, meter_provider=meter_provider)

    def __call__(self, msg: Any | None, /, *, context: ContextRepo) -> BaseMiddleware:
        return _HandlerSpan(msg, context=context, processing=self._processing)


class _HandlerSpan(BaseMiddleware):
    def __init__(
        self, msg: Any | None, /, *, context: ContextRepo, processing: Callable[..., AbstractContextManager[Span]]
    ) -> None:
        super().__init__(msg, context=context)
        self._processing = processing
        self._span = ExitStack()

    async def consume_scope(
        self, call_next: Callable[[StreamMessage[Any]], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        raw = msg.raw_message
        messages = raw if isinstance(raw, tuple) else (raw,)
        subscriber = msg.settlement if isinstance(msg, MinimqMessage) else None
        if isinstance(subscriber, MinimqSubscriber) and not subscriber._outer_config.in_memory:
            self._span.enter_context(self._processing(messages, group=subscriber.group or ""))
        self._span.enter_context(self.context.scope("span", trace.get_current_span()))
        self._span.enter_context(self.context.scope(_BAGGAGE, Baggage.from_msg(msg)))
        return await call_next(msg)

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
        changed: Baggage | None = self.context.get_local(_BAGGAGE)
        if changed is None:
            return await call_next(cmd)
        current = baggage.clear()
        for name, value in changed.get_all().items():
            current = baggage.set_baggage(name, value, current)
        token = attach(current)
        try:
            cmd.headers = changed.to_headers(cmd.headers)  # in memory, no interceptor adds them
            return await call_next(cmd)
        finally:
            detach(token)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool:
        """End the span after the handler's answer is sent."""
        if isinstance(exc_val, AckMessage):  # not an error: the handler acknowledges by an exception
            self._span.close()
        else:
            self._span.__exit__(exc_type, exc_val, exc_tb)
        return False
