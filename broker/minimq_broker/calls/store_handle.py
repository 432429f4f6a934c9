"""The open store of a broker. It is not readable while it is truncated or replaced by a copy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from minimq_broker.backup.copy import StoreCopy
from minimq_broker.commit.jobs import Notify
from minimq_broker.commit.message_store import MessageStore, StoreOptions
from minimq_broker.log.checkpoint import Snapshot
from minimq_broker.state.state import State
from minimq_common.errors import CopyInterrupted, SystemBusy

Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The status of a log; by default that of an empty one."""

    last_term: int = 0
    end: int = 0
    confirmed: int = 0
    #: The disk failed: the store rejects everything until the broker restarts.
    has_failed: bool = False
    log_id: str = ""


class StoreHandle:
    """Holds the open store and rejects readers while it is replaced. Changed on the event loop, read by any thread."""

    def __init__(
        self,
        path: Path,
        options: StoreOptions,
        notify: Notify,
        *,
        alone: bool,
        clock_ms: Callable[[], int],
        grown: Callable[[], None],
        closing: Callable[[], None],
        replaced: Callable[[State], None],
        disk_filled: Callable[[], None],
    ) -> None:
        self._path, self._options, self._alone = path, options, alone
        self._closing_now, self._replaced = closing, replaced
        self._new_store = partial(
            MessageStore, path, notify, options, clock_ms, grown=None if alone else grown, disk_filled=disk_filled
        )
        self.any_store = self._open()
        self._is_open = True
        #: Why the store is not readable; None if it is.
        self._closed: str | None = None
        #: The number of reading threads. The condition guards it, and whether more may begin.
        self._readers = 0
        self._readers_changed = threading.Condition()

    @property
    def store(self) -> MessageStore:
        """The store. Raises `SystemBusy` while it is not readable."""
        if self._closed is not None:
            raise SystemBusy(self._closed)
        return self.any_store

    @property
    def log_status(self) -> LogStatus:
        """The status of the log; an empty one while the store is not readable. Reads no file."""
        if self._closed is not None:
            return LogStatus()
        store = self.any_store
        return LogStatus(store.state.term, store.end, store.confirmed, store.has_failed, store.state.log_id)

    @property
    def damage(self) -> Mapping[int, str]:
        """The damaged segments, as in `DamageMarks.reasons`; none while the store is not readable."""
        return {} if self._closed is not None else self.any_store.log.damage.reasons

    @property
    def is_slave(self) -> bool:
        return not self.any_store.leads

    @property
    def is_closed(self) -> bool:
        """True while the store is not readable."""
        return self._closed is not None

    @contextlib.contextmanager
    def reading(self) -> Iterator[MessageStore]:
        """Keep the store open and unreplaced while a thread other than the loop's reads it."""
        with self._readers_changed:
            store = self.store
            self._readers += 1
        try:
            yield store
        finally:
            with self._readers_changed:
                self._readers -= 1
                self._readers_changed.notify_all()

    def close(self) -> None:
        """Close the store for good, after the last reader. Blocks."""
        with self._readers_changed:
            self._closed = self._closed or "this broker stops"
        self._without_readers(self.any_store.close)

    def _without_readers(self, work: Callable[[], Result]) -> Result:
        with self._readers_changed:
            self._readers_changed.wait_for(lambda: not self._readers)
        return work()

    def _open(self) -> MessageStore:
        try:
            store = self._new_store(alone=self._alone)
        except CopyInterrupted:
            if self._alone:
                raise
            log.warning("store: emptied, since the copy of the master was interrupted path=%s", self._path)
            StoreCopy(self._path, Snapshot(0, []), 0, self._options.segment_bytes, replace=True).finish()
            store = self._new_store(alone=False)
        return store

    async def change(self, work: Callable[[MessageStore], object], why: str) -> None:
        """Run `work` on the store in another thread, with no readers meanwhile. Readers are rejected with `why`."""
        with self._closing(why):
            await uncancellable(asyncio.to_thread(self._without_readers, partial(work, self.any_store)))

    async def replace(self, copy: Callable[[Path, int], Awaitable[None]], why: str) -> None:
        """Replace the content of the store by a copy. Readers are rejected with `why` meanwhile."""
        with self._closing(why):
            self._is_open = False
            try:
                await uncancellable(asyncio.to_thread(self._without_readers, self.any_store.close))
                await copy(self._path, self._options.segment_bytes)
            finally:
                await uncancellable(asyncio.to_thread(self._open_again))

    async def ensure_open(self) -> None:
        """Open the store again if that failed after a copy. Raises `StoreError`."""
        if not self._is_open:
            with self._closing("this broker opens its store again"):
                await uncancellable(asyncio.to_thread(self._open_again))

    def _open_again(self) -> None:
        self.any_store = self._open()
        self._is_open = True

    @contextlib.contextmanager
    def _closing(self, why: str) -> Iterator[None]:
        before = self.any_store.state
        with self._readers_changed:
            self._closed = why
        self._closing_now()
        try:
            yield
        finally:
            self._closed = None if self._is_open else "this broker could not open its store; its log has the reason"
            if self._is_open and self.any_store.state is not before:
                self._replaced(before)


async def uncancellable(work: Awaitable[Result]) -> Result:
    """Return the result of work that must not be interrupted. A cancellation is raised when the work is done."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


async def in_steps(
    handle: StoreHandle,
    begin: Callable[[MessageStore], Generator[None, None, Result]],
    pause: Callable[[float], Awaitable[object]],
) -> Result | None:
    """Run a generator on the store in another thread, one step at a time, and return its result.

    `pause` is awaited between two steps, with the duration of the last step in seconds. Returns None if the store was
    replaced or truncated meanwhile. Always closes the generator.
    """
    work: Generator[None, None, Result] | None = None
    store: MessageStore | None = None
    state: State | None = None

    def step() -> tuple[Result | None, bool]:
        nonlocal work, store, state
        with handle.reading() as there:
            if work is None:
                work, store, state = begin(there), there, there.state
            elif there is not store or there.state is not state:
                return None, True
            try:
                next(work)
            except StopIteration as end:
                return end.value, True
            return None, False

    try:
        while True:
            began = time.perf_counter()
            result, is_over = await uncancellable(asyncio.to_thread(step))
            if is_over:
                return result
            await pause(time.perf_counter() - began)
    finally:
        if work is not None:
            await asyncio.to_thread(work.close)
