"""Loaded by every Python process with this folder in PYTHONPATH: records the duration of steps of a server's loop.

The variable LOOP_STEPS_OF names the package of the server, LOOP_STEPS a JSON file that it writes at exit: the maximum
processor time in ms of a step and of a round, and the longest steps by name, with the number of times they were long
and their total in ms. A round is one iteration of the loop: many short steps in it delay others like one long step.
"""

import asyncio.base_events
import asyncio.events
import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

#: Steps above this time are reported by name, at most this many.
_LONG_S, _TOLD = 0.002, 12

_run = asyncio.events.Handle._run
_run_once = asyncio.base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]  # private
_most = {"step": 0.0, "round": 0.0}
_long: dict[str, list[float]] = {}


def _timed_step(self: asyncio.events.Handle) -> None:
    began = time.thread_time()
    _run(self)
    took = time.thread_time() - began
    _most["step"] = max(_most["step"], took)
    if took > _LONG_S:
        longest, times, all_ = _long.get(_name(self), (0.0, 0, 0.0))
        _long[_name(self)] = [max(longest, took), times + 1, all_ + took]


def _name(handle: Any) -> str:
    """Return the name of a step's callback, or for a task the stack of coroutines."""
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    calls: list[str] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        calls.append(str(getattr(coroutine, "__qualname__", type(coroutine).__name__)))
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(calls)


def _timed_round(self: Any) -> None:
    began = time.thread_time()  # does not include waiting
    _run_once(self)
    _most["round"] = max(_most["round"], time.thread_time() - began)


def _tell() -> None:
    told: dict[str, Any] = {name: seconds * 1000 for name, seconds in _most.items()}
    named = sorted(_long.items(), key=lambda item: -item[1][0])[:_TOLD]
    told["long"] = {name: [longest * 1000, times, all_ * 1000] for name, (longest, times, all_) in named}
    Path(os.environ["LOOP_STEPS"]).write_text(json.dumps(told))


if os.environ.get("LOOP_STEPS_OF", "-") in sys.orig_argv:
    asyncio.events.Handle._run = _timed_step  # type: ignore[method-assign]
    asyncio.base_events.BaseEventLoop._run_once = _timed_round  # type: ignore[attr-defined]
    atexit.register(_tell)
