"""`minimq produce`: lines of a file or of stdin become messages."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Unpack, get_args

import click

from minimq.admin import values
from minimq.admin.message_params import message_params
from minimq.admin.operation import Param
from minimq.admin.texts import size_of
from minimq.sending.producer_options import CompressionName, ProducerOptions
from minimq_cli.base import check_permission, interrupt_later, wait_for_route
from minimq_cli.commands import declared, progress_bar
from minimq_cli.line_format import MAX_ESCAPE, LineFormat, check_fields
from minimq_common.errors import InvalidArgument, MessageTooLarge, MinimqError, TopicNotFound, TopicUnavailable
from minimq_common.model import Message, MessageFields, Permission
from minimq_common.names import check_topic
from minimq_common.text_units import count_of

if TYPE_CHECKING:
    from minimq.producer import Producer
    from minimq.sending.selectors import Selector
    from minimq.sending.statistics import ProducerStatistics

#: Maximum number of bytes that are read before they are sent. Memory holds no more than this and one line.
_BLOCK_BYTES = 4 << 20
_READ_BYTES = 1 << 20

_DEFAULTS = ProducerOptions()


def _opened(text: str) -> BinaryIO:
    if text == "-":
        return sys.stdin.buffer
    try:
        return Path(text).open("rb")
    except OSError as error:
        raise InvalidArgument(f"cannot read {text}: {error.strerror}") from None


@declared("produce", "Send the lines of a file or of stdin as messages.", abouts=message_params())
def produce(  # noqa: PLR0913 - the options of the command
    nameserver: str,
    topic: values.TopicName,
    file: Annotated[str, Param(is_argument=True)] = "-",
    *,
    key_field: Annotated[str | None, Param(metavar="FIELD")] = None,
    tag_field: Annotated[str | None, Param(metavar="FIELD")] = None,
    shape: Annotated[str, Param(letter="-i", flag="--input", choices={"raw": "raw", "jsonl": "jsonl"})] = "raw",
    limit: Annotated[
        int, Param(flag="--max-body-bytes", low=1, high=32 << 20, metavar="BYTES")
    ] = _DEFAULTS.max_body_bytes,
    message_group_field: Annotated[str | None, Param(metavar="FIELD")] = None,
    by_key: bool = False,
    compression: Annotated[
        CompressionName, Param(choices={name: name for name in get_args(CompressionName)})
    ] = _DEFAULTS.compression,
    send_timeout: Annotated[float, Param(low=0.001, metavar="SECONDS")] = _DEFAULTS.send_timeout_s,
    **fields: Unpack[MessageFields],
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
      minimq consume orders --group copy --exit-at-end -o jsonl | minimq produce copied -i jsonl

    Args:
        nameserver: of the cluster.
        topic: its name.
        file: of lines; - for stdin.
        key_field: lines are JSON objects; the value of this field is the message's key.
        tag_field: lines are JSON objects; the value of this field is the message's tag.
        shape: bodies (raw), or JSON objects as `minimq consume --output jsonl` writes them.
        limit: maximum size of a body; the same option of the brokers must allow it, too.
        message_group_field: lines are JSON objects; the value of this field is the message group, and
            overrides --message-group.
        by_key: send all lines of one key to one queue, in their order; needs --key-field.
        compression: compression of batches.
        send_timeout: timeout of a batch with all retries, and of waiting for servers at the start. The
            default outlasts a fail-over; use more to outlast a restart.
        **fields: the fields of all messages.
    """
    from minimq.producer import Producer
    from minimq.sending.selectors import by_hash

    source = _opened(file)
    if "properties" in fields:
        fields["properties"] = values.properties_of("--property", fields["properties"])
    common = Message(topic, b"x", **fields)
    lines = _check(
        LineFormat(
            common, key_field=key_field, tag_field=tag_field, group_field=message_group_field, is_json=shape == "jsonl"
        )
    )
    if by_key and not (key_field or lines.is_json):
        raise click.UsageError("--by-key needs --key-field, which names the key of a line, or --input jsonl")
    parse = _InputParser(lines, limit, needs_key=by_key)
    began = time.monotonic()
    done, read = _Done(), 0
    try:
        with suppress(TopicNotFound, TopicUnavailable):  # it may be created, or be back, when the first line is sent
            route = wait_for_route(nameserver, topic, send_timeout, "--send-timeout", only=_is_server_offline)
            check_permission(route, Permission.WRITE)
        with (
            Producer(
                nameserver, max_body_bytes=limit, compression=compression, send_timeout_s=send_timeout
            ) as producer,
            progress_bar(_total(source), of_bytes=True, is_shown=not source.isatty()) as advance,
        ):
            try:
                for block in _blocks(source.fileno(), parse.line_limit):
                    _send_block(producer, block, parse, by_hash() if by_key else None, done)
                    read += len(block)
                    advance(read, None)
            finally:
                done.counted = producer.statistics()
    except MinimqError as error:
        # The base class, for exit status 1: the cause is the input or the cluster, not wrong usage.
        said, *attempts = error.message.splitlines()
        raise MinimqError("\n".join((f"{said}; {parse.say_stored(done)}", *attempts))) from None
    except Exception:
        click.echo(parse.say_stored(done), err=True)
        raise
    except KeyboardInterrupt:
        click.echo(f"interrupted: {parse.say_stored(done)}", err=True)
        raise
    else:
        seconds = max(time.monotonic() - began, 1e-9)
        click.echo(done.report(topic, seconds))


def _is_server_offline(error: MinimqError) -> bool:
    return error.retriable and not isinstance(error, TopicNotFound | TopicUnavailable)


def _check(lines: LineFormat) -> LineFormat:
    """Check the options before any line is read, and return them. Raises `click.UsageError` or `InvalidArgument`."""
    from minimq.features.delayed.due_times import due_time
    from minimq_common.batch.single import check_message

    if lines.common.tag and lines.tag_field:
        raise click.UsageError("--tag and --tag-field exclude each other")
    if lines.is_json and (lines.key_field or lines.tag_field or lines.group_field):
        raise click.UsageError(
            "--input jsonl has keys, tag and message group in each line: leave out --key-field, --tag-field and "
            "--message-group-field"
        )
    check_topic(lines.common.topic)
    check_message(lines.common, len(lines.common.body))
    due_time(lines.common, 0.0, time.time())
    return lines


@dataclass(slots=True)
class _Done:
    """The messages sent so far, and the final counts of the producer."""

    messages: int = 0
    bytes: int = 0
    counted: ProducerStatistics | None = None

    def report(self, topic: str, seconds: float) -> str:
        rates = f"{count_of(round(self.messages / seconds), 'message')}/s, {size_of(self.bytes / seconds)}/s"
        sent = f"sent {count_of(self.messages, 'message')} ({size_of(self.bytes)}) to {topic}"
        return f"{sent} in {seconds:.2f} s: {rates}"


def _send_block(producer: Producer, block: bytes, parse: _InputParser, selector: Selector | None, done: _Done) -> None:
    """Send whole lines; Ctrl-C is delayed until their outcome is known."""
    messages = parse.messages(block)
    with interrupt_later():
        if len(messages) == 1:
            producer.send(messages[0], selector=selector)
        elif messages:
            producer.send_many(messages, selector=selector)
        parse.stored()
        done.messages += len(messages)
    done.bytes += sum(len(message.body) for message in messages)


class _InputParser:
    """Converts lines to messages, and counts the lines for errors."""

    def __init__(self, lines: LineFormat, limit: int, *, needs_key: bool) -> None:
        self._lines = lines
        self._limit = limit
        #: Maximum bytes of a line whose body is within the limit.
        self.line_limit = limit * MAX_ESCAPE + _BLOCK_BYTES if lines.is_json else limit
        self._needs_key = needs_key
        #: The named fields, until the first lines were found to have them.
        self._unseen_fields = [each for each in (lines.key_field, lines.tag_field, lines.group_field) if each]
        self._line = 0
        self._stored = 0

    def messages(self, block: bytes) -> list[Message]:
        """Return the messages of whole lines. Raises `InvalidArgument` with the number of the line."""
        lines = _lines_of(block)
        first, self._line = self._line + 1, self._line + len(lines)
        messages = self._lines.messages(lines, first)
        if self._unseen_fields and messages:
            check_fields(self._unseen_fields, messages)
            self._unseen_fields = []
        if len(block) > self._limit:
            for number, message in messages:
                if len(message.body) > self._limit:
                    raise _too_long(number, self._limit)
        if messages and self._lines.is_decoded:
            self._check(messages)
        return [message for _, message in messages]

    def _check(self, messages: list[tuple[int, Message]]) -> None:
        """Raise `InvalidArgument` with the number of the first line that is valid JSON but no valid message."""
        from minimq_common.batch.builder import BatchBuilder
        from minimq_common.batch.single import check_message

        together = BatchBuilder(self._limit)
        try:  # one call for all, at a tenth of the cost
            together.add([message for _, message in messages])
            together.build(0, 0, 0)
        except InvalidArgument:
            for number, message in messages:
                try:
                    check_message(message, self._limit)
                except InvalidArgument as error:
                    raise InvalidArgument(f"line {number}: {error.message}") from None
        if self._needs_key:
            for number, message in messages:
                if not message.keys:
                    raise InvalidArgument(f"line {number} has no key to choose its queue by")

    def stored(self) -> None:
        self._stored = self._line

    def say_stored(self, done: _Done) -> str:
        """Return which lines are stored after an early end, and the line to continue with."""
        following = self._stored + 1
        said = f"lines 1 to {self._stored:,} are stored" if self._stored else "no line is known to be stored"
        more = done.counted.acknowledged - done.messages if done.counted is not None else 0
        if more:
            said = (
                f"line {following:,} is not known to be stored, but {count_of(more, 'message')} of later lines are, "
                "and sending them again duplicates them"
            )
        return f"{said}: continue with line {following:,}"


def _lines_of(block: bytes) -> list[bytes]:
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()  # the last \n does not begin another line
    return [line.removesuffix(b"\r") for line in lines]


def _too_long(number: int, limit: int) -> MessageTooLarge:
    remedy = "make it shorter, or raise --max-body-bytes here and at the brokers"
    return MessageTooLarge(f"line {number} has more than {limit:,} bytes: {remedy}")


def _blocks(fd: int, limit: int) -> Iterator[bytes]:
    """Yield blocks of whole lines as they arrive, of about `_BLOCK_BYTES` at most; the last line may lack its end."""
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
    """Wait for data; return up to a block of it, and whether the input has ended."""
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


def _total(file: BinaryIO) -> int | None:
    about = os.fstat(file.fileno())
    return about.st_size if stat.S_ISREG(about.st_mode) else None
