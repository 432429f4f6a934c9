"""The instrumentor that `opentelemetry-instrument` loads, for all producers and consumers of a process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined] # it hides it

from minimq.consuming import interceptor as receiving
from minimq.otel.receiving_spans import OtelReceive
from minimq.otel.sending_spans import OtelSend
from minimq.sending import interceptor as sending


class MinimqInstrumentor(BaseInstrumentor):
    """Adds `OtelSend` and `OtelReceive` to all clients that are created from now on.

    Call `MinimqInstrumentor().instrument()`, or run the program unchanged with the command `opentelemetry-instrument`.
    `uninstrument` affects only clients that are created later.
    """

    _ends: Collection[Callable[[], None]] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: this module is installed with the library that it instruments."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        providers = kwargs.get("tracer_provider"), kwargs.get("meter_provider")
        self._ends = (sending.intercept_all(OtelSend(*providers)), receiving.intercept_all(OtelReceive(*providers)))

    def _uninstrument(self, **kwargs: Any) -> None:
        for end in self._ends:
            end()
        self._ends = ()
