"""The instrumentor that `opentelemetry-instrument` finds, for all producers and consumers of a process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined] # it hides it

from minimq.otel.receiving_spans import OtelReceive
from minimq.otel.sending_spans import OtelSend
from minimq.receiving import interceptor as receiving
from minimq.sending import interceptor as sending


class MinimqInstrumentor(BaseInstrumentor):
    """Adds `OtelSend` and `OtelReceive` to all clients that are made from now on.

    `MinimqInstrumentor().instrument()` does that in a program; the command `opentelemetry-instrument` without a change
    of the program. `uninstrument` ends it for clients that are made later.
    """

    _ends: Collection[Callable[[], None]] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: it comes with what it instruments."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        providers = kwargs.get("tracer_provider"), kwargs.get("meter_provider")
        self._ends = (sending.intercept_all(OtelSend(*providers)), receiving.intercept_all(OtelReceive(*providers)))

    def _uninstrument(self, **kwargs: Any) -> None:
        for end in self._ends:
            end()
        self._ends = ()
