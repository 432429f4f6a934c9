"""The text of an error for Spark, which shows nothing but text."""

from __future__ import annotations

from minimq import MiniMQError, errors


def in_one_line(error: MiniMQError) -> str:
    """Return the cause of an error, and of the last try where there were several."""
    text = error.message.splitlines()[0]
    if isinstance(error, errors.SendFailed) and error.tries:
        return f"{text} (tries: {len(error.tries)}; {error.tries[-1]}); sendTimeout says how long to try"
    return text
