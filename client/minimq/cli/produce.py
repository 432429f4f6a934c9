"""`minimq produce`: lines of a file or of stdin become messages."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

import click

from minimq.cli.base import check_allowed, interrupt_later, option
from minimq.cli.completion import complete_topics
from minimq.cli.delay_options import delay_options
from minimq.cli.line_format import LONGEST_ESCAPE, TO_UTF8, LineDelay, LineFormat, properties_of
from minimq.operations.words import size_of
from minimq.sending.producer_options import CompressionName, ProducerOptions
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError
from minimq_common.model import Message, Permission
from minimq_common.names import check_topic
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.sending.producer import Producer
    from minimq.sending.selectors import Selector
    from minimq.sending.statistics import ProducerStatistics

#: Bytes that are read before they are sent. Memory holds no more than this and one line.
_BLOCK_BYTES = 4 << 20
_READ_BYTES = 1 << 20

_DEFAULTS = ProducerOptions()

#: Called with the number of bytes sent.
Advance = Callable[[int], None]


@click.command(short_help="Send the lines of a file or of stdin as messages.")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("file", type=click.File("rb", lazy=False), default="-")
@option("--key-field", metavar="FIELD", help="Lines are JSON objects; the value of this field is the message's key.")
@option("--tag-field", metavar="FIELD", help="Lines are JSON objects; the value of this field is the message's tag.")
@option("--tag", metavar="TAG", help="Tag of all messages.")
@option(
    "--property",
    "properties",
    envvar="MINIMQ_PRODUCE_PROPERTY",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of all messages; may be given several times.",
)
@option(
    "--format",
    "shape",
    envvar="MINIMQ_PRODUCE_FORMAT",
    type=click.Choice(("body", "json")),
    default="body",
    show_default=True,
    help="Lines are bodies, or JSON objects as `minimq consume --format json` writes them.",
)
@option(
    "--max-body-bytes",
    "limit",
    envvar="MINIMQ_PRODUCE_MAX_BODY_BYTES",
    type=click.IntRange(1, 32 << 20),
    default=_DEFAULTS.max_body_bytes,
    show_default=True,
    metavar="BYTES",
    help="Maximum size of a body; brokers have the same option and must allow it as well.",
)
@option("--message-group", metavar="NAME", help="Message group, for a FIFO topic.")
@option(
    "--message-group-field",
    metavar="FIELD",
    help="Lines are JSON objects; the value of this field is the message group, before that of --message-group.",
)
@delay_options
@option("--by-key", is_flag=True, help="Send all lines of one key to one queue, in their order; needs --key-field.")
@option(
    "--compression",
    type=click.Choice(get_args(CompressionName)),
    default=_DEFAULTS.compression,
    show_default=True,
    help="Compression of batches.",
)
@option(
    "--send-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_DEFAULTS.send_timeout_s,
    show_default=True,
    metavar="SECONDS",
    help="Time for all tries of a batch, and to wait for servers at the start. The default outlasts a fail-over; use "
    "more to outlast a restart.",
)
@option(
    "--statistics",
    type=click.Choice(("table", "json")),
    help="Print counters, latencies and avoided brokers at the end, even after a failure.",
)
@click.pass_obj
def produce(  # noqa: PLR0913 - the flags of the command
    nameserver: str,
    topic: str,
    file: BinaryIO,
    *,
    key_field: str | None,
    tag_field: str | None,
    tag: str | None,
    properties: tuple[str, ...],
    shape: str,
    limit: int,
    message_group: str | None,
    message_group_field: str | None,
    delay: LineDelay,
    by_key: bool,
    compression: CompressionName,
    send_timeout: float,
    statistics: str | None,
) -> None:
    """Send each line of FILE, or of stdin, as a message; skip empty lines.

    The end of a line, LF or CRLF, is not sent. With JSON lines, blank lines and a byte order mark at the beginning are
    skipped.

    Lines are sent as soon as they arrive, without a delay for slow pipes. On a failure, the command prints which lines
    are stored and the line to continue with. It does the same on Ctrl-C, with exit status 130.

    \b
    Examples:
      tail -f app.log | minimq produce logs
      minimq produce orders orders.jsonl --key-field id --tag-field status
      minimq produce orders orders.jsonl --key-field customer --by-key
      minimq produce bookings bookings.jsonl --message-group-field account
      echo "check in" | minimq produce reminders --after 30m
      minimq produce orders orders.csv --property source=import --property day=2026-01-31
      minimq consume orders --group copy --exit-at-end --format json | minimq produce copied --format json
    """
    from minimq.cli.producer_statistics import show_statistics
    from minimq.sending.producer import Producer
    from minimq.sending.selectors import by_hash

    selector = by_hash() if by_key else None
    groups = message_group, message_group_field
    lines = _line_format(topic, key_field, tag_field, tag, properties, groups, delay, is_json=shape == "json")
    if by_key and not (key_field or lines.is_json):
        raise click.UsageError("--by-key needs --key-field, which names the key of a line, or --format json")
    parse = _InputParser(lines, limit, needs_key=by_key)
    began = time.monotonic()
    done = _Done()
    try:
        check_allowed(nameserver, topic, Permission.WRITE, patience_s=send_timeout, option_name="--send-timeout")
        with (
            Producer(
                nameserver, max_body_bytes=limit, compression=compression, send_timeout_s=send_timeout
            ) as producer,
            _progress(file) as advance,
        ):
            try:
                for block in _blocks(file.fileno(), parse.line_limit):
                    _send_block(producer, block, parse, selector, done)
                    advance(len(block))
            finally:
                done.counted = producer.statistics()
    except MiniMQError as error:
        # Of the base class: the cause is in the lines or the cluster, not in the usage.
        raise MiniMQError(f"{error.message}; {parse.say_stored(done)}") from None
    except Exception:
        click.echo(parse.say_stored(done), err=True)
        raise
    except KeyboardInterrupt:
        click.echo(f"interrupted: {parse.say_stored(done)}", err=True)
        raise
    else:
        seconds = max(time.monotonic() - began, 1e-9)
        click.echo(done.report(topic, seconds))
    finally:
        if statistics and done.counted is not None:
            show_statistics(statistics, done.counted)


def _line_format(
    topic: str,
    key_field: str | None,
    tag_field: str | None,
    tag: str | None,
    properties: Iterable[str],
    groups: tuple[str | None, str | None],
    delay: LineDelay,
    *,
    is_json: bool,
) -> LineFormat:
    """Return the converter of lines to messages. Raises `click.UsageError` or `InvalidArgument`."""
    from minimq.sending.due_times import due_time
    from minimq_common.batch.single import check_message

    if tag and tag_field:
        raise click.UsageError("--tag and --tag-field exclude each other")
    message_group, group_field = groups
    if is_json and (key_field or tag_field or group_field):
        raise click.UsageError(
            "--format json has keys, tag and message group in each line: leave out --key-field, --tag-field and "
            "--message-group-field"
        )
    common = properties_of(properties)
    any_body = b"x"
    message = Message(check_topic(topic), any_body, tag, (), common, message_group, *delay)
    check_message(message, len(any_body))
    due_time(message, 1.0, 0.0, time.time())
    return LineFormat(
        topic,
        key_field,
        tag_field,
        tag,
        common,
        message_group=message_group,
        group_field=group_field,
        delay=delay,
        is_json=is_json,
    )


@dataclass(slots=True)
class _Done:
    """The messages sent so far, and the final counts of the producer."""

    messages: int = 0
    bytes: int = 0
    counted: ProducerStatistics | None = None

    def report(self, topic: str, seconds: float) -> str:
        """Return the summary for the end."""
        rates = f"{count_of(round(self.messages / seconds), 'message')}/s, {size_of(self.bytes / seconds)}/s"
        sent = f"sent {count_of(self.messages, 'message')} ({size_of(self.bytes)}) to {topic}"
        return f"{sent} in {seconds:.2f} s: {rates}"


def _send_block(producer: Producer, block: bytes, parse: _InputParser, selector: Selector | None, done: _Done) -> None:
    """Send whole lines; an interruption waits until their outcome is known."""
    messages = parse.messages(block)
    try:
        with interrupt_later():
            _send(producer, messages, selector)
            parse.stored()
            done.messages += len(messages)
    except MessageTooLarge as error:
        raise parse.refused(block, error) from None
    done.bytes += sum(len(message.body) for message in messages)


def _send(producer: Producer, messages: list[Message], selector: Selector | None) -> None:
    if len(messages) == 1:
        producer.send(messages[0], selector=selector)
    elif messages:
        producer.send_many(messages, selector=selector)


def _is_not_utf8(block: bytes) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return True
    return False


#: What is said once of lines that are sent as they are.
_HINTS: dict[Callable[[bytes], bool], str] = {
    _is_not_utf8: f"there are lines that are not UTF-8; they are sent as they are. {TO_UTF8}",
    lambda block: b"\r\n" in block: "there are lines that end with CRLF; neither CR nor LF is sent",
}


class _InputParser:
    """Converts lines to messages, and counts the lines for errors."""

    def __init__(self, lines: LineFormat, limit: int, *, needs_key: bool) -> None:
        self._lines = lines
        self._limit = limit
        #: Bytes of the longest line that can hold such a body.
        self.line_limit = limit * LONGEST_ESCAPE + _BLOCK_BYTES if lines.is_json else limit
        self._needs_key = needs_key
        self._line = 0
        self._stored = 0
        self._hints = {} if lines.is_decoded else dict(_HINTS)

    def messages(self, block: bytes) -> list[Message]:
        """Return the messages of whole lines. Raises `InvalidArgument` with the number of the line."""
        lines = _lines_of(block)
        first, self._line = self._line + 1, self._line + len(lines)
        for mark, text in [*self._hints.items()]:
            if not mark(block):
                continue
            del self._hints[mark]
            click.echo(f"note: {text}", err=True)
        messages = self._lines.messages(lines, first)
        if len(block) > self._limit:
            for number, message in messages:
                if len(message.body) > self._limit:
                    raise _too_long(number, self._limit)
        if messages and self._lines.is_decoded:
            self._check(messages)
        if self._needs_key:
            for number, message in messages:
                if not message.keys:
                    raise InvalidArgument(f"line {number} has no key to choose its queue by")
        return [message for _, message in messages]

    def _check(self, messages: list[tuple[int, Message]]) -> None:
        """Raise `InvalidArgument` with the number of the first line that JSON accepts and a message does not."""
        from minimq_common.batch.builder import BatchBuilder
        from minimq_common.batch.single import check_message

        together = BatchBuilder(self._limit)
        try:  # all in one call, at a tenth of the cost
            together.add([message for _, message in messages])
            together.build(0, 0, 0)
        except InvalidArgument:
            for number, message in messages:
                try:
                    check_message(message, self._limit)
                except InvalidArgument as error:
                    raise InvalidArgument(f"line {number}: {error.message}") from None

    def stored(self) -> None:
        """Record that all lines so far are stored."""
        self._stored = self._line

    def say_stored(self, done: _Done) -> str:
        """Return which lines are stored after an early end, and the line to continue with."""
        said = f"lines 1 to {self._stored:,} are stored" if self._stored else "no line is known to be stored"
        more = done.counted.acknowledged - done.messages if done.counted is not None else 0
        if more:
            said += f", and {count_of(more, 'message')} of the lines after them, which are duplicated if sent again"
        return f"{said}: continue with line {self._stored + 1:,}"

    def refused(self, block: bytes, error: MessageTooLarge) -> MessageTooLarge:
        """Return the error of a broker about the last block of `messages`, with the number of the longest line."""
        bodies = _lines_of(block)
        longest = max(range(len(bodies)), key=lambda place: len(bodies[place]))
        number = self._line - len(bodies) + longest + 1
        return MessageTooLarge(
            f"line {number} has {len(bodies[longest]):,} bytes: {error.message}; make it shorter, or start the brokers "
            "with a larger --max-body-bytes"
        )


def _lines_of(block: bytes) -> list[bytes]:
    """Return lines without their ends."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()  # a line ends with \n, which does not begin another one
    return [line.removesuffix(b"\r") for line in lines]


def _too_long(number: int, limit: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"line {number} has more than {limit:,} bytes: make it shorter, or raise --max-body-bytes "
        "here and at the "
        "brokers"
    )


def _blocks(fd: int, limit: int) -> Iterator[bytes]:
    """Yield whole lines, as many as have arrived but not more than about a block; the last one may lack its end.

    Raises `MessageTooLarge` when one is so much above the limit that it should not be kept in memory.
    """
    rest: list[bytes] = []
    rest_bytes = lines = 0
    while True:
        data, ended = _available(fd)
        cut = data.rfind(b"\n") + 1
        if cut:
            lines += data.count(b"\n")
            yield b"".join((*rest, data[:cut]))
            rest, rest_bytes, data = [], 0, data[cut:]
        if data:
            rest.append(data)
            rest_bytes += len(data)
        if ended:
            break
        if rest_bytes > limit + _BLOCK_BYTES:
            raise _too_long(lines + 1, limit)
    if rest:
        yield b"".join(rest)


def _available(fd: int) -> tuple[bytes, bool]:
    """Wait for data, and return up to a block of it, and whether that was the end."""
    parts: list[bytes] = []
    size = 0
    while size < _BLOCK_BYTES:
        data = os.read(fd, _READ_BYTES)
        if not data:
            return b"".join(parts), True
        parts.append(data)
        size += len(data)
        if not select.select([fd], [], [], 0)[0]:
            break
    return b"".join(parts), False


def _progress(file: BinaryIO) -> AbstractContextManager[Advance]:
    """Return a progress bar on stderr if that is a terminal and stdin is not; otherwise an invisible one."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or file.isatty():
        return nullcontext(lambda _: None)
    return _bar(console, file)


def _bar(console: Any, file: BinaryIO) -> AbstractContextManager[Advance]:
    from contextlib import contextmanager

    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    about = os.fstat(file.fileno())
    total = about.st_size if stat.S_ISREG(about.st_mode) else None

    @contextmanager
    def showing() -> Iterator[Advance]:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("sending", total=total)
            yield lambda size: progress.advance(task, size)

    return showing()
