"""The futures that `send_async` returns, by the hundred thousand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from minimq.sending.pending_batch import UserCall
from minimq_common.errors import MiniMQError

T = TypeVar("T")

_PENDING, _FINISHED = "PENDING", "FINISHED"
#: The condition of futures that got their outcome before anybody looked at them.
_COMPLETED = threading.Condition()
#: The parts of a future that only those need who wait for it.
_PARTS: dict[str, Callable[[], Any]] = {"_condition": threading.Condition, "_waiters": list, "_done_callbacks": list}


class ReceiptFuture(Future[T], Generic[T]):
    """A future of a receipt that is cheap if its outcome arrives before anybody waits for it.

    Its condition is made when first asked for. Whether that or the outcome comes first is decided by one atomic step:
    the entry in the dictionary of the future. From there on the rules of the base class hold.
    """

    _result: T | None = None
    _exception: BaseException | None = None

    __init__ = object.__init__  # makes nothing: most futures never need it

    def __getattr__(self, name: str) -> Any:
        """Make a part that is missing."""
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

    def complete(self, receipt: T | None, error: MiniMQError | None) -> UserCall | None:
        """Process the outcome: a receipt, or the error. Returns the call of the callbacks."""
        own = self.__dict__
        if "_condition" not in own:
            if receipt is not None:
                self._result = receipt
            else:
                self._exception = error
            if own.setdefault("_condition", _COMPLETED) is _COMPLETED:
                return None
        if not self._condition.acquire(blocking=False):  # whoever has it may be interrupted by a signal handler
            return partial(self._set_and_call, receipt, error)
        try:
            is_set = self._set(receipt, error)
        finally:
            self._condition.release()
        return super()._invoke_callbacks if is_set and own.get("_done_callbacks") else None  # type: ignore[misc]

    def _set(self, receipt: T | None, error: MiniMQError | None) -> bool:
        if not self.set_running_or_notify_cancel():
            return False
        if error is None and receipt is not None:
            self.set_result(receipt)
        else:
            self.set_exception(error)
        return True

    def _set_and_call(self, receipt: T | None, error: MiniMQError | None) -> None:
        if self._set(receipt, error):
            super()._invoke_callbacks()  # type: ignore[misc]

    def _invoke_callbacks(self) -> None:
        if self.cancelled():
            super()._invoke_callbacks()  # type: ignore[misc]

    def result(self, timeout: float | None = None) -> T:
        """Return the receipt, after waiting for it; raise what `send` would."""
        if self._result is not None and self.__dict__.get("_condition") is _COMPLETED:
            return self._result
        return super().result(timeout)
