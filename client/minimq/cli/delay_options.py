"""The options of `minimq produce` for delayed messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from minimq.cli.base import option
from minimq.cli.line_format import LineDelay, moment_of
from minimq_common.words import seconds_of


def delay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--after`, `--at` and `--recallable` to a command, which gets them together as `delay`."""

    @functools.wraps(command)
    def with_delay(
        *args: Any,
        after: float | None,
        at: datetime | None,
        recallable: bool,
        **options: Any,
    ) -> None:
        if after is not None and at is not None:
            raise click.UsageError("--after and --at exclude each other")
        command(*args, delay=LineDelay(after, at, recallable), **options)

    for add in (
        option(
            "--recallable",
            is_flag=True,
            help="The messages can be recalled until then; `minimq delayed list` shows their handles.",
        ),
        option(
            "--at",
            callback=_moment,
            metavar="TIME",
            help="Deliver the messages at this time, for example 2026-12-24T18:00Z.",
        ),
        option(
            "--after", callback=_duration, metavar="DURATION", help="Deliver the messages so much later: 90s, 1h30m."
        ),
    ):
        with_delay = add(with_delay)
    return with_delay


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is no duration: write 30m, 90s, 1h30m or 500ms")
    return seconds


def _moment(_context: click.Context, _option: click.Parameter, text: str | None) -> datetime | None:
    return None if text is None else moment_of(text, "--at")
