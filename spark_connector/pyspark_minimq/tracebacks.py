"""Errors as Spark shows them: nothing but text."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from pyspark_minimq.errors import MinimqSparkError

if TYPE_CHECKING:
    from minimq import MiniMQError

P = ParamSpec("P")
R = TypeVar("R")


def in_one_line(error: MiniMQError) -> str:
    """Return the cause of an error, and of the last try where there were several."""
    from minimq import errors

    text = error.message.splitlines()[0]
    if isinstance(error, errors.SendFailed) and error.tries:
        return f"{text} (tries: {len(error.tries)}; {error.tries[-1]}); sendTimeout says how long to try"
    return text


def without_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that Spark calls: errors that say themselves what to do come without their traceback.

    Spark shows the traceback together with the text, so that the text drowns in it. This leaves the one entry that
    Python makes here. Errors that nobody expects keep theirs. All others become a `MinimqSparkError`, also that of a
    missing package.
    """
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)
                return
            except Exception as error:  # noqa: BLE001 - it is raised below, outside of the handler, which would be shown
                shown = _shown(error)
            raise shown

        return cast("Callable[P, R]", generate)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as above
            shown = _shown(error)
        raise shown

    return call


def _shown(error: Exception) -> Exception:
    if isinstance(error, ImportError):
        error = MinimqSparkError(
            f"Python cannot import what minimq needs ({error}): install minimq[spark] for {sys.executable}, or send "
            "it with the job; see 'On a cluster' in docs/spark.md"
        )
    if not isinstance(error, MinimqSparkError):
        from minimq import MiniMQError

        if not isinstance(error, MiniMQError):
            return error
        error = MinimqSparkError(in_one_line(error))
    error.__cause__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)
