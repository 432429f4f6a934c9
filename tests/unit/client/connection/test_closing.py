"""Closing a client from two threads, and in a fork."""

from __future__ import annotations

import os
import threading

import pytest

from minimq.connection import finalizers
from minimq.connection.finalizers import Closing, Finalizer


def test_a_second_close_returns_when_the_first_is_over() -> None:
    closing, has_begun, may_end = Closing(), threading.Event(), threading.Event()
    ended: list[str] = []

    def close() -> None:
        has_begun.set()
        may_end.wait()
        ended.append("closed")

    def close_again() -> None:
        closing.run(lambda: ended.append("closed twice"))
        ended.append("returned")

    first, second = threading.Thread(target=closing.run, args=(close,)), threading.Thread(target=close_again)
    first.start()
    has_begun.wait()
    second.start()
    second.join(0.2)  # a second one that does not wait has returned by then
    may_end.set()
    first.join()
    second.join()
    assert ended == ["closed", "returned"]


def test_a_client_that_a_fork_closes_and_drops_keeps_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If gRPC freed them there, connections of the parent process would break."""

    class Client:
        pass

    def release() -> None:
        raise AssertionError("released in a fork")

    kept: list[object] = []
    monkeypatch.setattr(finalizers, "_never_released", kept)
    client = Client()
    finalizer = Finalizer(client, release)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    finalizer.close(release)
    del client
    assert kept == [finalizer]
