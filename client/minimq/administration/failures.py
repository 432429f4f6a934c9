"""One error for the failures of many brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minimq_common.errors import MiniMQError, NotDrained


def lasting_first(error: MiniMQError) -> tuple[bool, bool]:
    """Order errors: permanent ones come first, then queues that have to be read."""
    return error.retriable, not isinstance(error, NotDrained)


def merge_failures(
    failures: Mapping[str, MiniMQError], order: Callable[[MiniMQError], Any] = lasting_first
) -> MiniMQError:
    """Return one error for all failures, by broker, with the class and the retry delay of the first in order."""
    ordered = sorted(failures.items(), key=lambda item: order(item[1]))
    first = ordered[0][1]
    if len({error.message for error in failures.values()}) == 1:
        text = f"{', '.join(broker for broker, _ in ordered)}: {first.message}"
    else:
        text = "; ".join(f"{broker}: {error.message}" for broker, error in ordered)
    return first.with_message(text)


def raise_failures(
    what: str,
    failures: Mapping[str, MiniMQError],
    asked: Mapping[str, str],
    remedy: str,
    order: Callable[[MiniMQError], Any] = lasting_first,
) -> None:
    """Raise one error for all failures, if there are any, merged as `merge_failures` does."""
    if not failures:
        return
    merged = merge_failures({f"{broker} ({asked[broker]})": error for broker, error in failures.items()}, order)
    texts = {error.message for error in failures.values()}
    if len(failures) == len(asked) and len(texts) == 1:
        text = f"{what}: {texts.pop()}"
    else:
        text = f"{what} on {len(failures)} of {len(asked)} brokers: {merged.message}; {remedy}"
    raise merged.with_message(text)
