"""An event loop in a thread, so that plain tests can run asyncio servers beside themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from minimq_common.serving.daemon import Server

T = TypeVar("T")
S = TypeVar("S", bound=Server)


class LoopThread:
    """Runs coroutines on a loop of its own. One per process is best: gRPC's asyncio side is made for one loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 20.0) -> T:
        """Run on the loop and return the result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop, for objects that live there."""

        async def calling() -> T:
            return function()

        return self.run(calling())

    @contextmanager
    def serving(self, server: S) -> Iterator[S]:
        """Start a server, and stop it at the end."""
        try:
            self.run(server.start())
            yield server
        finally:
            self.run(server.stop())

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
