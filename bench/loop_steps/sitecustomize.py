"""Loaded by every Python that finds this folder in PYTHONPATH: a name server notes how long the steps of its loop take.

The variable LOOP_STEPS names a file, where at its end the most ms of processor time of a step and of a round stand. A
round is all that was ready at once: many short steps in one delay others as one long step does.
"""

import asyncio.base_events
import asyncio.events
import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any

_run = asyncio.events.Handle._run
_run_once = asyncio.base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]  # private
_most = {"step": 0.0, "round": 0.0}


def _timed_step(self: asyncio.events.Handle) -> None:
    began = time.thread_time()
    _run(self)
    _most["step"] = max(_most["step"], time.thread_time() - began)


def _timed_round(self: Any) -> None:  # noqa: ANN401 - of any loop
    began = time.thread_time()  # waiting takes none
    _run_once(self)
    _most["round"] = max(_most["round"], time.thread_time() - began)


def _tell() -> None:
    Path(os.environ["LOOP_STEPS"]).write_text(f"{_most['step'] * 1000} {_most['round'] * 1000}")


if "minimq_nameserver" in sys.orig_argv:
    asyncio.events.Handle._run = _timed_step  # type: ignore[method-assign]
    asyncio.base_events.BaseEventLoop._run_once = _timed_round  # type: ignore[attr-defined]
    atexit.register(_tell)
