"""Requests that wait for their reply, on a real event loop and without brokers."""

from __future__ import annotations

import gc
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

from minimq.connection.client import ClusterClient
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.receipt_future import ReceiptFuture
from minimq.sending.requests.attend_streams import Attendance
from minimq.sending.requests.reply import Reply
from minimq.sending.requests.requester import OpenRequest, Requester
from minimq_proto.v1 import attend_pb2
from support.waiting import wait_until

PATIENCE_S = 60.0
MANY = 40_000
LONG_S = 3_600.0


def kept() -> int:
    return sum(type(each) is OpenRequest for each in gc.get_objects())


def test_requests_that_were_answered_do_not_stay_until_a_deadline() -> None:
    home = cast("Attendance", SimpleNamespace(events=0, broker_name="broker-a"))
    unused = cast("Any", None)
    with closing(ClusterClient("127.0.0.1:1")) as client:
        requester = Requester(client, CallbackThread("callbacks"), unused, unused)
        until = time.monotonic() + LONG_S
        for number in range(MANY):
            future: ReceiptFuture[Reply] = ReceiptFuture()
            request, _ = requester.begin(home, future, LONG_S, until + number)
            reply = attend_pb2.RequestReply(correlation_id=request.id)
            replies = attend_pb2.ReplyBatch(replies=[reply]).SerializeToString()
            requester._happened("broker-a", attend_pb2.AttendEvent(replies=replies))
            assert future.result() == Reply(b"")
        wait_until(lambda: kept() < MANY // 2, PATIENCE_S)
