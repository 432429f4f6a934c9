"""Removes tracebacks from expected errors, since Spark shows them to users."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from pyspark_minimq.errors import MinimqSparkError

if TYPE_CHECKING:
    from minimq import MinimqError

P = ParamSpec("P")
R = TypeVar("R")


def in_one_line(error: MinimqError) -> str:
    """Return the text of an error in one line, with the last attempt of a send that failed."""
    from minimq import errors

    text = error.message.splitlines()[0]
    if isinstance(error, errors.SendFailed) and error.attempts:
        return f"{text} (attempts: {len(error.attempts)}; {error.attempts[-1]}); sendTimeout says how long to try"
    return text


def without_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that Spark calls, so that users see the text of an expected error without a traceback."""
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)
                return
            except Exception as error:  # noqa: BLE001 - raised below, since Spark would show the handler's context
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
        from minimq import MinimqError

        if not isinstance(error, MinimqError):
            return error
        error = MinimqSparkError(in_one_line(error))
    error.__cause__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)
