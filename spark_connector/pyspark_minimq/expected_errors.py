"""Turns errors of minimq into those of queries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark_minimq.errors import MinimqSparkError

if TYPE_CHECKING:
    from minimq import MinimqError


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise expected errors within the block as `MinimqSparkError`."""
    try:
        yield
    except ImportError as error:
        raise MinimqSparkError(
            f"Python cannot import what minimq needs ({error}): install minimq[spark] for {sys.executable}, or send "
            "it with the job; see 'On a cluster' in docs/spark.md"
        ) from None
    except Exception as error:
        from minimq import MinimqError  # it may be what cannot be imported

        if isinstance(error, MinimqError):
            raise MinimqSparkError(in_one_line(error)) from None
        raise


def in_one_line(error: MinimqError) -> str:
    """Return the text of an error in one line, with the last attempt of a send that failed."""
    from minimq import errors

    text = error.message.splitlines()[0]
    if isinstance(error, errors.SendFailed) and error.attempts:
        return f"{text} (attempts: {len(error.attempts)}; {error.attempts[-1]}); sendTimeout says how long to try"
    return text
