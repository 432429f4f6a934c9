"""A connection of a browser that does not hold its place without a request."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Seconds in which the head of a request is to come, from the begin of the connection or the last answer on.
HEAD_S = 10.0


class BoundedConnection(H11Protocol):
    """Closes itself when no request comes as a whole, also if its bytes come one by one. Used on the event loop."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_request(None)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._wait_for_request(answered)

    def _wait_for_request(self, last: RequestResponseCycle | None) -> None:
        self.loop.call_later(HEAD_S, self._close_unless_asked, last)

    def _close_unless_asked(self, last: RequestResponseCycle | None) -> None:
        if self.cycle is last and not self.transport.is_closing():
            self.transport.close()
