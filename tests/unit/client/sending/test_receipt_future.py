"""The futures of receipts behave as any future, whichever comes first: the outcome, or somebody who looks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError, as_completed, wait

import pytest

from minimq.connection.loop_calls import Awaited
from minimq.sending.receipt import BatchReceipt, SendReceipt, SendStatus
from minimq.sending.receipt_future import ReceiptFuture
from minimq_common.errors import SendFailed
from minimq_common.model import MessageQueue

RECEIPT = SendReceipt(BatchReceipt(MessageQueue("t", "a", 0), 0, 0, 1, 1, 0, SendStatus.SEND_OK), 0)
FAILURE = SendFailed("no")
TIMEOUT_S = 30.0


@pytest.fixture
def switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def look(future: ReceiptFuture[SendReceipt]) -> None:
    """Make it as if somebody waited."""
    assert not future.done()
    future._condition  # noqa: B018 - makes it


@pytest.mark.parametrize("looked_at", [False, True])
def test_it_has_the_receipt_it_was_given(looked_at: bool) -> None:
    future = ReceiptFuture()
    if looked_at:
        look(future)
    called: list[Future[SendReceipt]] = []
    future.complete(RECEIPT, None)
    future.add_done_callback(called.append)
    assert future.done()
    assert not future.running()
    assert not future.cancelled()
    assert not future.cancel()
    assert future.result() is RECEIPT
    assert future.result(0) is RECEIPT
    assert future.exception() is None
    assert called == [future]
    assert wait([future], 0).done == {future}
    assert list(as_completed([future], 0)) == [future]
    assert "finished" in repr(future)
    with pytest.raises(InvalidStateError):
        future.set_result(RECEIPT)


@pytest.mark.parametrize("looked_at", [False, True])
def test_it_raises_the_error_it_was_given(looked_at: bool) -> None:
    future = ReceiptFuture()
    if looked_at:
        look(future)
    future.complete(None, FAILURE)
    assert future.exception() is FAILURE
    with pytest.raises(SendFailed):
        future.result()


def test_one_that_waits_is_woken_and_one_that_called_back_is_called() -> None:
    future = ReceiptFuture()
    called = threading.Event()
    future.add_done_callback(lambda done: called.set())
    with pytest.raises(TimeoutError):
        future.result(0.01)
    waiting = threading.Thread(target=future.result)
    waiting.start()
    call = future.complete(RECEIPT, None)
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()
    assert not called.is_set(), "code of users was called where an event loop may run"
    assert call is not None
    call()
    assert called.is_set()


def test_one_that_is_cancelled_takes_no_outcome() -> None:
    future = ReceiptFuture()
    assert future.cancel()
    future.complete(RECEIPT, None)
    assert future.cancelled()
    with pytest.raises(CancelledError):
        future.result()


def test_callbacks_of_one_that_is_cancelled_are_called_once() -> None:
    future: ReceiptFuture[SendReceipt] = ReceiptFuture()
    told: list[bool] = []
    future.add_done_callback(lambda it: told.append(it.cancelled()))
    assert future.cancel()
    assert future.complete(RECEIPT, None) is None
    assert told == [True]


def test_a_future_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="'ReceiptFuture' object has no attribute 'receipt'"):
        _ = ReceiptFuture().receipt


def cancelled_or_not(future: ReceiptFuture[SendReceipt]) -> None:
    if future.cancel():
        with pytest.raises(CancelledError):
            future.result(TIMEOUT_S)
    else:
        assert future.result(TIMEOUT_S) is RECEIPT


def waited_for(future: ReceiptFuture[SendReceipt]) -> None:
    assert wait([future], TIMEOUT_S).done == {future}
    assert future.result(0) is RECEIPT


def called_back(future: ReceiptFuture[SendReceipt]) -> None:
    called = threading.Semaphore(0)
    future.add_done_callback(lambda done: called.release())
    assert called.acquire(timeout=TIMEOUT_S)
    assert not called.acquire(blocking=False)


def asked(future: ReceiptFuture[SendReceipt]) -> None:
    assert future.result(TIMEOUT_S) is RECEIPT


def test_threads_that_wait_for_the_same_futures_do_not_lock_each_other_out() -> None:
    done = ReceiptFuture[SendReceipt]()
    done.complete(RECEIPT, None)
    thread = threading.Thread(target=wait, args=([done],), daemon=True)
    with done._condition:
        thread.start()
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("use", [cancelled_or_not, waited_for, called_back, asked])
@pytest.mark.usefixtures("switching_often")
def test_the_outcome_may_come_at_any_moment(use: Callable[[ReceiptFuture[SendReceipt]], None]) -> None:
    futures = [ReceiptFuture() for _ in range(1000)]

    def tell() -> None:
        for future in futures:
            for call in filter(None, (future.complete(RECEIPT, None),)):
                call()

    telling = threading.Thread(target=tell)
    telling.start()
    for future in futures:
        use(future)
    telling.join(TIMEOUT_S)
    assert not telling.is_alive()


def test_a_thread_that_waits_gets_the_outcome() -> None:
    awaited: Awaited[SendReceipt] = Awaited()
    telling = threading.Thread(target=awaited.complete, args=(RECEIPT, None))
    telling.start()
    assert awaited.result() is RECEIPT
    telling.join()
    failed: Awaited[SendReceipt] = Awaited()
    failed.complete(None, FAILURE)
    with pytest.raises(SendFailed):
        failed.result()
