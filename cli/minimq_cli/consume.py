"""`minimq consume`: messages of a topic to stdout."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import click

from minimq.admin import values
from minimq.admin.operation import Param
from minimq.admin.texts import missing
from minimq.options import START_TIMEOUT_S
from minimq_cli.base import check_permission, stop_on_signal, tell, wait_for_route
from minimq_cli.commands import LIMIT, declared, output_param
from minimq_cli.message_output import FORMATS, MessageOutput, OutputHalted, Tags, Where, with_expressions
from minimq_common.errors import AccessDenied, GroupNotFound, InvalidArgument, MinimqError
from minimq_common.model import Permission
from minimq_common.text_units import count_of
from minimq_common.timestamps import Time

if TYPE_CHECKING:
    import threading

    from minimq.consumer import PullConsumer
    from minimq.consuming.received import ReceivedMessage
    from minimq_common.model import MessageQueue

_POLL_S = 0.2
_POLL_MESSAGES = 4096

#: Seconds between checks of the progress of other members.
_LOOK_S = 0.5


@with_expressions
@declared("consume", "Write the messages of a topic to stdout.")
def consume(  # noqa: PLR0913 - the options of the command
    nameserver: str,
    topic: values.TopicName,
    *,
    group: Annotated[str, Param(complete="groups", metavar="GROUP")] = "",
    start: Annotated[
        Time, Param(flag="--from", metavar="earliest|latest|TIME", read=values.moment_or_end)
    ] = "earliest",
    limit: Annotated[int | None, LIMIT] = None,
    exit_at_end: bool = False,
    wait_for_brokers: Annotated[float, Param(low=0, metavar="SECONDS")] = 30.0,
    tags: Tags = (),
    where: Where = None,
    output: Annotated[str, output_param(*FORMATS)] = "raw",
    start_timeout: Annotated[float, Param(low=0, metavar="SECONDS")] = START_TIMEOUT_S,
) -> None:
    """Write the messages of a topic to stdout, one on a line, as a member of a group.

    It commits the messages that it has written every 5 seconds and when it ends: the next run continues after them.
    Ctrl-C is the normal end, with exit status 0, or 1 if a broker cannot be reached for the last commit. Messages that
    were not committed when it or a broker stopped are redelivered, even after a clean stop of a broker.

    Messages that the reader of a pipe has not read are not committed. `head` reads more than it shows: use --limit N.

    Several runs in one group share the queues. At the end, it prints the number of filtered messages on stderr.

    \b
    Examples:
      minimq consume orders --group audit --exit-at-end
      minimq consume orders --group debug --from latest -o jsonl | jq .body
      minimq consume orders --group eu --tags paid --where "region = 'eu' AND amount > 10"

    Args:
        nameserver: of the cluster.
        topic: its name.
        group: consumer group, whose offsets the brokers keep; required.
        start: where the group begins if it is new. A time is 2026-01-31T08:00Z, with a time zone, or before
            now: -24h, -90m, -7d; or 1769846400000ms since 1970.
        limit: end after N messages.
        exit_at_end: end after the messages that were stored at the start; with status 1 if the queues of a
            broker could not be read because it was or went offline.
        wait_for_brokers: seconds without progress after which --exit-at-end gives up queues that it cannot read.
        tags: only these tags, such as "paid || refunded".
        where: only messages whose properties, tag (TAGS) or keys (KEYS) match: "region = 'eu' AND amount >
            10".
        output: the body alone (raw), or a JSON object with everything on each line.
        start_timeout: timeout of waiting at the start for a name server and the brokers of the topic.
    """
    from minimq.consumer import PullConsumer
    from minimq.consuming.consumer import OFFLINE_LOG

    if not group:
        raise click.UsageError(
            "Missing option '--group': messages are committed for a group. `minimq peek` shows messages without one."
        )
    expression = " || ".join(tags) or "*"
    with (
        stop_on_signal() as told,
        PullConsumer(nameserver, group=group, start=start, start_timeout_s=start_timeout) as consumer,
    ):
        consumer.subscribe(topic, expression, where=where)
        waiting = _waiting(told, start_timeout)
        route = wait_for_route(nameserver, topic, start_timeout, "--start-timeout", wait=waiting)
        check_permission(route, Permission.READ)
        OFFLINE_LOG.setLevel(logging.ERROR)  # reported here, in the same way as by other commands
        if not exit_at_end:
            tell(missing(route.offline, {}, "not read until it is back"))
        ends = StoredEnds(nameserver, topic, group, consumer, wait_for_brokers) if exit_at_end else None
        writer = MessageOutput(sys.stdout.fileno(), FORMATS[output], told)
        is_open, unread = True, list[str]()
        while is_open and not told.is_set() and (limit is None or writer.count < limit):
            left = _POLL_MESSAGES if limit is None else min(_POLL_MESSAGES, limit - writer.count)
            messages = consumer.poll(_POLL_S, left)
            is_open = _write(writer, messages, consumer)
            if ends is not None and ends.reached():
                unread = ends.unread()
                break
        if is_open:
            _write(writer, [], consumer)  # the reader may have exited since
        for line in unread:  # before the last commit, which may fail
            click.echo(line, err=True)
        filtered = consumer.filtered_messages
    if sys.stderr.isatty() or filtered:
        said = f", {filtered:,} filtered out" if filtered else ""
        click.echo(f"{count_of(writer.count, 'message')}{said}", err=True)
    if unread:
        sys.exit(1)


def _waiting(told: threading.Event, max_wait_s: float) -> Callable[[float], None]:
    """Return a sleep function that reports the first wait, and exits on a signal."""
    said = iter((f"waiting up to {max_wait_s:g} s for servers that are not reachable",))

    def wait(seconds: float) -> None:
        tell(islice(said, 1))
        if told.wait(seconds):
            sys.exit(0)

    return wait


def _write(writer: MessageOutput, messages: list[ReceivedMessage], consumer: PullConsumer) -> bool:
    """Write messages, if any. Returns False if the reader has exited, or does not read before the command ends."""
    try:
        writer.write(messages)
    except BaseException as error:
        # The consumer counts polled messages as processed, but these were not written: seek back to redeliver them.
        for message in writer.take_back(reader_left=isinstance(error, BrokenPipeError)):
            with contextlib.suppress(InvalidArgument):  # the queue was revoked
                consumer.seek(message.queue, message.queue_offset)
        if not isinstance(error, BrokenPipeError | OutputHalted):
            raise
        return False
    return True


class StoredEnds:
    """Tracks whether a group has read everything that was stored at the start; the consumer has to join it first."""

    def __init__(self, nameserver: str, topic: str, group: str, consumer: PullConsumer, max_wait_s: float) -> None:
        from minimq.admin.admin import Admin

        self._nameserver = nameserver
        self._group = group
        self._consumer = consumer
        self._max_wait_s = max_wait_s
        with Admin(nameserver) as admin:
            readable = set(admin.route(topic).read_queues())
            found = admin.describe_topic(topic)
        brokers = {queue.broker_name for queue in readable}
        unanswered = {broker: why for broker, why in found.unanswered.items() if broker in brokers}
        #: Lines about brokers that were offline or did not answer at the start: the ends of their queues are unknown.
        self._unknown = missing(found.offline, unanswered, "not read")
        #: The end offsets of the queues with messages left to read.
        self._left = {each.queue: each.max_offset for each in found.queues if each.queue in readable and each.messages}
        #: Own positions, and offsets that other members have committed.
        self._read: dict[MessageQueue, int] = {}
        self._was_ready = False
        self._moved_at = self._look_at = time.monotonic()

    def reached(self) -> bool:
        """Return whether the group has read everything, or has read nothing for `max_wait_s`."""
        before = self._was_ready, dict(self._read)
        for queue in self._consumer.assignment:
            with contextlib.suppress(InvalidArgument):  # the queue has moved to another member, whose progress counts
                self._read[queue] = self._consumer.position(queue)
        if time.monotonic() >= self._look_at and not self._left.keys() <= set(self._consumer.assignment):
            self._add_commits()
        self._was_ready = self._consumer.is_ready
        if (self._was_ready, self._read) != before:
            self._moved_at = time.monotonic()
        self._left = {queue: end for queue, end in self._left.items() if self._read.get(queue, 0) < end}
        is_over = self._was_ready and not self._left
        return is_over or time.monotonic() - self._moved_at >= self._max_wait_s

    def unread(self) -> list[str]:
        """Return a line for each broker whose queues were not read to their ends."""
        counts = Counter(queue.broker_name for queue in self._left)
        lines = [f"{name}: {count_of(count, 'queue')} not read to the end" for name, count in sorted(counts.items())]
        joining = [] if self._was_ready else [f"group {self._group}: not joined, no broker of the topic has answered"]
        return [*self._unknown, *lines, *joining]

    def _add_commits(self) -> None:
        from minimq.admin.admin import Admin

        began = time.monotonic()
        try:
            with Admin(self._nameserver) as admin:
                queues = admin.describe_group(self._group).queues
        except MinimqError as error:
            # No member has committed yet, or a temporary error; the consumer reports other errors.
            if not (error.retriable or isinstance(error, GroupNotFound | AccessDenied)):
                raise
            queues = ()
        mine = self._consumer.assignment
        self._read |= {each.queue: each.committed_offset or 0 for each in queues if each.queue not in mine}
        now = time.monotonic()
        self._look_at = now + max(_LOOK_S, now - began)  # a broker that hangs must not stop the output of the rest
