"""Options that several commands of `minimq topic` have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from minimq.cli.base import option
from minimq_common.errors import InvalidArgument
from minimq_common.model import MAX_QUEUES
from minimq_common.quantities import bytes_of, seconds_of

Command = TypeVar("Command", bound=Callable[..., Any])

cluster_option = option(
    "--cluster", metavar="NAME", help="Name of the cluster; needed if the name server knows several."
)
broker_option = option(
    "--broker", "brokers", multiple=True, metavar="NAME", help="Only on this broker; may be given several times."
)


def _queue_count(_context: click.Context, parameter: click.Parameter, count: int | None) -> int | None:
    """Return a number of queues. Raises `InvalidArgument` when no topic has so many."""
    if count is not None and not 1 <= count <= MAX_QUEUES:
        raise InvalidArgument(f"{parameter.opts[0]} is {count}: a topic has 1 to {MAX_QUEUES} queues on each broker")
    return count


count_option = partial(option, type=int, metavar="N", callback=_queue_count)
read_option = count_option("--read-queues", help="Queues that consumers see on each broker, if not all.")
write_option = count_option("--write-queues", help="Queues that producers see on each broker, if not all.")


def _seconds(_context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Return a time in seconds. Raises `InvalidArgument`."""
    seconds = seconds_of(text)
    if seconds is None:
        raise InvalidArgument(f"{parameter.opts[0]} is {text!r}: give a time such as 30s, 5m, 24h or 7d")
    return seconds


def _retention_s(_context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Return a retention in seconds; 0 for that of the broker. Raises `InvalidArgument`."""
    if text is None or text in _AS_THE_BROKER:
        return None if text is None else 0.0
    if seconds := seconds_of(text):
        return seconds
    raise InvalidArgument(f"{parameter.opts[0]} is {text!r}: give a time such as 12h or 7d, or default")


def _retention_bytes(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a size in bytes; 0 for no limit. Raises `InvalidArgument`."""
    if text is None or text in _AS_THE_BROKER:
        return None if text is None else 0
    if size := bytes_of(text):
        return size
    raise InvalidArgument(f"{parameter.opts[0]} is {text!r}: give a size such as 10GiB, or default")


#: What stands for no rule of its own.
_AS_THE_BROKER = ("default", "0")


def retention_options(default: str | None) -> Callable[[Command], Command]:
    """Return the decorator that adds the options of a topic's own retention."""
    age = option(
        "--retention",
        "retention_s",
        metavar="TIME",
        default=default,
        callback=_retention_s,
        help="Time for which messages are kept, such as 7d; default: as long as those of other topics.",
    )
    size = option(
        "--retention-bytes",
        metavar="SIZE",
        default=default,
        callback=_retention_bytes,
        help="Size on each broker from which on the oldest messages go, such as 10GiB; default: none of its own.",
    )
    return lambda command: age(size(command))


time_option = partial(option, metavar="TIME", callback=_seconds, show_default=True)
