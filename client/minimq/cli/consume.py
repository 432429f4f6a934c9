"""`minimq consume`: messages of a topic to stdout."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

import click
import msgspec

from minimq.cli.base import check_allowed, count_of, option, stop_on_signal
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue, Permission

if TYPE_CHECKING:
    from collections.abc import Callable

    from minimq.receiving.pull_consumer import PullConsumer
    from minimq.receiving.received import ReceivedMessage

_POLL_S = 0.2
_POLL_MESSAGES = 4096
#: Time between two looks at how far other members of the group are.
_LOOK_S = 0.5


def _no_output(_context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError("there is no --output: --format json writes one JSON object for each message")


@click.command(short_help="Write the messages of a topic to stdout.")
@click.argument("topic")
@option("--group", required=True, metavar="GROUP", help="Consumer group, whose offsets the brokers keep.")
@option(
    "--from",
    "start",
    envvar="MINIMQ_CONSUME_FROM",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Where the group begins if it is new; a time in ISO 8601, in UTC unless it says otherwise.",
)
@option(
    "--max",
    "limit",
    envvar="MINIMQ_CONSUME_MAX",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after that many messages.",
)
@option("--exit-at-end", is_flag=True, help="End when the group has read all that was stored at the beginning.")
@option("--tags", default="*", show_default=True, metavar="EXPRESSION", help='Only these tags: "paid || refunded".')
@option(
    "--where",
    envvar="MINIMQ_CONSUME_WHERE",
    metavar="EXPRESSION",
    help="Only messages with such properties: \"region = 'eu' AND amount > 10\".",
)
@option(
    "--format",
    "shape",
    envvar="MINIMQ_CONSUME_FORMAT",
    type=click.Choice(("body", "json")),
    default="body",
    show_default=True,
    help="The body alone, or one JSON object with everything for each message.",
)
@option(
    "--read-from-slaves/--no-read-from-slaves",
    default=True,
    show_default=True,
    help="Go on at a slave while a broker has no master that answers; the same for all members of the group.",
)
@click.option("--output", hidden=True, is_eager=True, expose_value=False, callback=_no_output, help="Other commands'.")
@click.pass_obj
def consume(  # noqa: PLR0913, PLR0917 - click passes each option
    nameserver: str,
    topic: str,
    group: str,
    start: str,
    limit: int | None,
    exit_at_end: bool,
    tags: str,
    where: str | None,
    shape: str,
    read_from_slaves: bool,
) -> None:
    """Write the messages of a topic to stdout, one on a line, as a member of a group.

    What has been written is committed, at the latest when the command ends, also on Ctrl-C, which is its normal end
    with exit status 0: the next run goes on after it. When a broker is not reached then, it ends with status 1, and
    what was written since the last commit comes again. Several runs in one group share the queues among them.

    \b
    Examples:
      minimq consume orders --group audit --exit-at-end
      minimq consume orders --group debug --from latest --format json | jq .body
      minimq consume orders --group eu --tags paid --where "region = 'eu' AND amount > 10"
    """  # noqa: D301 - click's mark for lines that stay as they are
    from minimq.receiving.pull_consumer import PullConsumer

    made = PullConsumer(nameserver, group=group, start=start, read_from_slaves=read_from_slaves)
    with stop_on_signal() as told, made as consumer:
        check_allowed(nameserver, topic, Permission.READ)
        ends = _Ends(nameserver, topic, group, consumer) if exit_at_end else None
        consumer.subscribe(topic, tags, where)
        writer = _Writer(sys.stdout.buffer, _as_json if shape == "json" else _as_body)
        is_open = True
        while is_open and not told.is_set() and (limit is None or writer.count < limit):
            left = _POLL_MESSAGES if limit is None else min(_POLL_MESSAGES, limit - writer.count)
            messages = consumer.poll(_POLL_S, left)
            if messages:
                is_open = _write(writer, messages, consumer)
            if ends is not None and ends.reached():
                break
    if sys.stderr.isatty():
        click.echo(count_of(writer.count, "message"), err=True)


def _write(writer: _Writer, messages: list[ReceivedMessage], consumer: PullConsumer) -> bool:
    """Write messages. Returns False when nobody reads any more."""
    try:
        writer.write(messages)
    except BaseException as error:
        # The consumer counts as done what it has handed out: these are not, so the group gets them again.
        with contextlib.suppress(InvalidArgument):
            consumer.seek(messages[0].queue, messages[0].queue_offset)
        if not isinstance(error, OSError):
            raise
        # Python flushes stdout at the exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            click.echo(f"error: stdout takes no more: {error.strerror}", err=True)
            sys.exit(1)
        return False
    return True


class _Writer:
    """Writes and counts messages."""

    def __init__(self, file: BinaryIO, line_of: Callable[[ReceivedMessage], bytes]) -> None:
        self.count = 0
        self._file = file
        self._line_of = line_of

    def write(self, messages: list[ReceivedMessage]) -> None:
        """Write messages, a line each, and flush."""
        rest = memoryview(b"\n".join((*map(self._line_of, messages), b"")))
        while rest:  # with PYTHONUNBUFFERED, stdout writes a part only when a signal comes
            rest = rest[self._file.write(rest) :]
        self._file.flush()
        self.count += len(messages)


def _as_body(message: ReceivedMessage) -> bytes:
    return message.body


def _as_json(message: ReceivedMessage) -> bytes:
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return msgspec.json.encode(
        {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue": message.queue.queue_id,
            "offset": message.queue_offset,
            "message_id": message.message_id,
            "tag": message.tag,
            "keys": list(message.keys),
            "properties": dict(message.properties),
            "born_at": message.born_at,
            "stored_at": message.stored_at,
            **body,
        }
    )


class _Ends:
    """The ends that the queues of a topic had at the beginning, and whether the group has come there."""

    def __init__(self, nameserver: str, topic: str, group: str, consumer: PullConsumer) -> None:
        from minimq.administration.admin import Admin

        self._nameserver = nameserver
        self._topic = topic
        self._group = group
        self._consumer = consumer
        with Admin(nameserver) as admin:
            readable = set(admin.route(topic).read_queues())
            found = admin.describe_topic(topic).queues
        #: The queues in which something is left to read, with their ends.
        self._left: dict[MessageQueue, int] = {
            item.queue: item.max_offset for item in found if item.queue in readable and item.messages
        }
        self._look_at = time.monotonic() + _LOOK_S

    def reached(self) -> bool:
        """Whether this member or another one has read everything."""
        for queue in self._consumer.assignment:
            # It may be another member's by now, then that one is asked about.
            with contextlib.suppress(InvalidArgument):
                if self._consumer.position(queue) >= self._left.get(queue, 0):
                    self._left.pop(queue, None)
        if self._left and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            self._ask_about_others()
        return not self._left

    def _ask_about_others(self) -> None:
        from minimq.administration.admin import Admin

        mine = set(self._consumer.assignment)
        if self._left.keys() <= mine:
            return
        with Admin(self._nameserver) as admin:
            committed = admin.committed_offsets(self._group, self._topic)
        for queue, offset in committed.items():
            if queue not in mine and offset >= self._left.get(queue, offset + 1):
                del self._left[queue]
