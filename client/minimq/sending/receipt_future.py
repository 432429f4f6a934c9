"""The futures that `send_async` returns: cheap, as there may be hundreds of thousands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

from minimq.connection.fork_guard import check_may_wait, loop_threads
from minimq.sending.pending_batch import UserCall
from minimq_common.errors import MinimqError

T = TypeVar("T")

_PENDING, _FINISHED = "PENDING", "FINISHED"


class _NoLock(nullcontext[None]):
    def acquire(self) -> None: ...

    release = acquire


#: Marks futures that got their outcome before anyone waited; stands in place of their condition. Locks nothing:
#: `concurrent.futures.wait` holds the conditions of many futures at once. If futures shared a lock, two threads could
#: deadlock.
_COMPLETED = _NoLock()
#: Attributes of the base class that are created only when someone waits for the future.
_PARTS: dict[str, Callable[[], Any]] = {"_condition": threading.Condition, "_waiters": list, "_done_callbacks": list}


class ReceiptFuture(Future[T], Generic[T]):
    """A future that is cheap if its outcome arrives before anyone waits for it.

    Its condition is created on first use. An atomic `setdefault` in the dictionary of the future decides whether the
    condition or the outcome came first. If it was the condition, the base class does the rest.
    """

    _result: T | None = None
    _exception: BaseException | None = None

    __init__ = object.__init__  # creates nothing: most futures need no condition

    def __getattr__(self, name: str) -> Any:
        """Create an attribute of the base class on first use."""
        make = _PARTS.get(name)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__.setdefault(name, make())

    @property
    def _state(self) -> str:
        own = self.__dict__
        return _FINISHED if own.get("_condition") is _COMPLETED else own.get("_set_state", _PENDING)

    @_state.setter
    def _state(self, state: str) -> None:
        self.__dict__["_set_state"] = state

    def __call__(self, outcome: T | MinimqError) -> UserCall | None:
        """See `Outcome`. Returns the call that runs the callbacks."""
        own = self.__dict__
        if "_condition" not in own:
            if isinstance(outcome, MinimqError):
                self._exception = outcome
            else:
                self._result = outcome
            if own.setdefault("_condition", _COMPLETED) is _COMPLETED:
                return None
        if not self._condition.acquire(blocking=False):
            return partial(self._set_and_call, outcome)
        try:
            is_set = self._set(outcome)
        finally:
            self._condition.release()
        return super()._invoke_callbacks if is_set and own.get("_done_callbacks") else None  # type: ignore[misc]

    def _set(self, outcome: T | MinimqError) -> bool:
        if not self.set_running_or_notify_cancel():
            return False
        if isinstance(outcome, MinimqError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)
        return True

    def _set_and_call(self, outcome: T | MinimqError) -> None:
        if self._set(outcome):
            super()._invoke_callbacks()  # type: ignore[misc]

    def _invoke_callbacks(self) -> None:
        if self.cancelled():
            super()._invoke_callbacks()  # type: ignore[misc]

    def result(self, timeout: float | None = None) -> T:
        """Wait for the receipt. Raises as `send`."""
        if self._result is not None and self.__dict__.get("_condition") is _COMPLETED:
            return self._result
        self._check_may_wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_may_wait()
        return super().exception(timeout)

    def _check_may_wait(self) -> None:
        if threading.get_ident() in loop_threads and not self.done():
            check_may_wait()
