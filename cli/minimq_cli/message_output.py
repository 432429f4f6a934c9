"""Writes messages as lines to stdout, and tracks which of them were written."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import termios
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import click
import msgspec

from minimq.admin.message_rows import message_row
from minimq.admin.operation import Param
from minimq_common.errors import MinimqError

if TYPE_CHECKING:
    import threading

    from minimq.consuming.received import ReceivedMessage
    from minimq_common.model import MessageQueue

LineOf = Callable[["ReceivedMessage"], bytes]

#: Messages are kept until this many bytes were written after them: no pipe holds more, unless root raised the limit.
_KEPT_BYTES = 1 << 20
#: Interval of checks for the stop event while the reader does not read.
_STOP_CHECK_INTERVAL_MS = 100
#: Timeout of such a reader after the stop event.
_HALT_TIMEOUT_MS = 2000


def as_body(message: ReceivedMessage) -> bytes:
    return message.body


def as_json(message: ReceivedMessage) -> bytes:
    """Return everything as a JSON object; a body that is not UTF-8 as `body_base64`."""
    return msgspec.json.encode(message_row(message, body=True))


#: Formats of messages by value of `--output`. A stream has no end, so json is one object on a line, as jsonl.
FORMATS: Mapping[str, LineOf] = {"raw": as_body, "json": as_json, "jsonl": as_json}
_EXPRESSION = "EXPRESSION"
Tags = Annotated[Sequence[str], Param(metavar=_EXPRESSION)]
Where = Annotated[str | None, Param(metavar=_EXPRESSION)]


class _UnsplitText(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click only
    """A repeatable text option whose variable is not split at blanks."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


def with_expressions(command: click.Command) -> click.Command:
    """Make the variable of `--tags` hold one expression, which may have blanks."""
    next(each for each in command.params if each.name == "tags").type = _UnsplitText()
    return command


class OutputFailed(MinimqError):
    """A write failed although the reader may still exist, for example on a full disk."""


class OutputHalted(Exception):
    """The reader does not read, and the command has to end."""


class _WrittenMessages(NamedTuple):
    """Messages that were written together, and the number of bytes written before them."""

    messages: list[ReceivedMessage]
    start: int


class MessageOutput:
    """Writes messages to a file descriptor, a line each, and counts those that were written."""

    def __init__(self, fd: int, line_of: LineOf, told: threading.Event) -> None:
        self.count = 0
        self._told = told
        self._fd = fd
        self._line_of = line_of
        self._poll = select.poll()
        self._poll.register(fd, 0)
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)
        self._bytes = 0
        self._parts: deque[_WrittenMessages] = deque()

    def write(self, messages: list[ReceivedMessage]) -> None:
        """Write messages, possibly none. After a failure, `take_back` returns those that were not written."""
        if messages:
            self._parts.append(_WrittenMessages(messages, self._bytes))
            self.count += len(messages)
        self._check_reader()
        self._write_lines(messages)
        while len(self._parts) > 1 and self._parts[1].start <= self._bytes - _KEPT_BYTES:
            self._parts.popleft()

    def _check_reader(self) -> None:
        """Raise `BrokenPipeError` if the reader has exited."""
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in self._poll.poll(0)):
            raise BrokenPipeError

    def _write_lines(self, messages: list[ReceivedMessage]) -> None:
        rest = memoryview(b"\n".join((*map(self._line_of, messages), b"")))
        while rest:
            self._wait_for_room()
            written = self._write(rest[: select.PIPE_BUF])  # there is room for it, so it does not block
            self._bytes += written
            rest = rest[written:]

    def _wait_for_room(self) -> None:
        waited_ms = 0
        while not self._room.poll(_STOP_CHECK_INTERVAL_MS):
            waited_ms = waited_ms + _STOP_CHECK_INTERVAL_MS if self._told.is_set() else 0
            if waited_ms >= _HALT_TIMEOUT_MS:
                raise OutputHalted

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputFailed(f"cannot write to stdout: {error.strerror}") from None

    def take_back(self, *, reader_left: bool) -> list[ReceivedMessage]:
        """Return the first message of each queue that was not written completely; uncount all unwritten messages."""
        out = self._bytes - (_bytes_in_pipe(self._fd) if reader_left else 0)
        first: dict[MessageQueue, ReceivedMessage] = {}
        for messages, start in self._parts:
            end = start
            for message in messages:
                end += len(self._line_of(message)) + 1
                if end > out:
                    first.setdefault(message.queue, message)
                    self.count -= 1
        self._parts.clear()
        return list(first.values())


def _bytes_in_pipe(fd: int) -> int:
    """Return the number of unread bytes in a pipe; 0 if it is not a pipe."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return 0
    found: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    return found
