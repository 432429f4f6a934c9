"""Requests that wait for their reply, on a real event loop and without brokers."""

from __future__ import annotations

import gc
import time
from types import SimpleNamespace
from typing import cast

from minimq.connection.connection import Connection
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.receipt_future import ReceiptFuture
from minimq.sending.requests.attend_streams import Attendance
from minimq.sending.requests.open_requests import OpenRequest, OpenRequests
from minimq.sending.requests.reply import Reply
from support.waiting import wait_until

PATIENCE_S = 60.0
MANY = 40_000
LONG_S = 3_600.0


def kept() -> int:
    return sum(type(each) is OpenRequest for each in gc.get_objects())


def test_requests_that_were_answered_do_not_stay_until_a_deadline() -> None:
    connection = Connection(["127.0.0.1:1"])
    home = cast("Attendance", SimpleNamespace(events=0))
    requests = OpenRequests(connection, CallbackThread("callbacks").run)
    until = time.monotonic() + LONG_S
    for number in range(MANY):
        future: ReceiptFuture[Reply] = ReceiptFuture()
        request = OpenRequest(requests, str(number), LONG_S, until + number, future, home)
        requests.add(request)
        requests.end(request, Reply(b""), None)
        assert future.result() == Reply(b"")
    wait_until(lambda: kept() < MANY // 2, PATIENCE_S)
    connection.close()
