"""The thread of user callbacks."""

from __future__ import annotations

import threading

from minimq.sending.callback_thread import CallbackThread


def test_calls_after_the_end_run_where_they_are_made() -> None:
    callbacks, ran_on = CallbackThread("callbacks"), list[threading.Thread]()
    callbacks.run(lambda: ran_on.append(threading.current_thread()))
    callbacks.close(60.0)
    callbacks.run(lambda: ran_on.append(threading.current_thread()))
    assert [thread.name for thread in ran_on] == ["callbacks", threading.current_thread().name]
