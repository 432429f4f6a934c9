"""`minimq consume`: messages of a topic to stdout."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import click

from minimq.admin import values
from minimq.admin.operation import Param
from minimq.admin.texts import missing
from minimq.options import START_TIMEOUT_S
from minimq_cli.base import check_allowed, stop_on_signal, tell
from minimq_cli.commands import LIMIT, declared, output_param
from minimq_cli.message_output import FORMATS, MessageOutput, OutputHalted, Tags, Where, with_expressions
from minimq_common.errors import GroupNotFound, InvalidArgument, MinimqError, TopicNotFound, TopicUnavailable
from minimq_common.model import Permission
from minimq_common.text_units import count_of
from minimq_common.timestamps import Time

if TYPE_CHECKING:
    import threading

    from minimq.admin.admin import Admin
    from minimq.consuming.pull_consumer import PullConsumer
    from minimq.consuming.received import ReceivedMessage
    from minimq_common.model import MessageQueue, OfflineBroker

_POLL_S = 0.2
_POLL_MESSAGES = 4096

#: Seconds between checks of the brokers and of the progress of other members.
_LOOK_S = 0.5
#: Lower bound of the timeout after which a broker counts as silent.
_MIN_TIMEOUT_S = 2.0


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

    Messages that the reader of a pipe has not read are not committed. The first 20 lines are written one by one, so
    that `head` reads no more of them than it shows; for more lines, use --limit N.

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
        wait_for_brokers: seconds that --exit-at-end waits for a broker that goes offline or stops answering.
        tags: only these tags, such as "paid || refunded".
        where: only messages whose properties, tag (TAGS) or keys (KEYS) match: "region = 'eu' AND amount >
            10".
        output: the body alone (raw), or a JSON object with everything on each line.
        start_timeout: timeout of waiting at the start for a name server and the brokers of the topic.
    """
    from minimq.consuming.consumer import OFFLINE_LOG
    from minimq.consuming.pull_consumer import PullConsumer

    if not group:
        raise click.UsageError(
            "Missing option '--group': messages are committed for a group. `minimq peek` shows messages without one."
        )
    expression = " || ".join(tags) or "*"
    made = PullConsumer(nameserver, group=group, start=start, start_timeout_s=start_timeout)
    with stop_on_signal() as told, _last_commit(made) as consumer:
        consumer.subscribe(topic, expression, where=where)
        route = check_allowed(
            nameserver,
            topic,
            Permission.READ,
            max_wait_s=start_timeout,
            option_name="--start-timeout",
            wait=_waiting(told, start_timeout),
        )
        OFFLINE_LOG.setLevel(logging.ERROR)  # reported here, in the same way as by other commands
        if route is not None and not exit_at_end:
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


@contextlib.contextmanager
def _last_commit(made: AbstractContextManager[PullConsumer]) -> Iterator[PullConsumer]:
    """Open a consumer; an error at its end says that messages written since the last commit are redelivered."""
    is_over = False
    try:
        with made as consumer:
            yield consumer
            is_over = True
    except MinimqError as error:
        if not is_over:
            raise
        raise error.with_message(
            f"{error.message}; messages that were written since the last commit are not committed, and will be "
            "delivered again"
        ) from None


def _waiting(told: threading.Event, max_wait_s: float) -> Callable[[float], None]:
    """Return a sleep function that reports the first wait, and exits on a signal."""
    is_said = False

    def wait(seconds: float) -> None:
        nonlocal is_said
        if not is_said:
            click.echo(f"waiting up to {max_wait_s:g} s for servers that are not reachable", err=True)
        is_said = True
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
    """Tracks whether a group has read everything that was stored at the start.

    The consumer has to join the group first, even if nothing is left to read: it reports if the group rejects it.
    """

    def __init__(self, nameserver: str, topic: str, group: str, consumer: PullConsumer, max_wait_s: float) -> None:
        from minimq.admin.admin import Admin

        self._nameserver = nameserver
        self._topic = topic
        self._group = group
        self._consumer = consumer
        self._max_wait_s = max_wait_s
        with Admin(nameserver) as admin:
            readable = set(admin.route(topic).read_queues())
            found = admin.describe_topic(topic)
        #: The brokers; one of them must admit the consumer to the group.
        self._brokers = {queue.broker_name for queue in readable}
        unanswered = {broker: why for broker, why in found.unanswered.items() if broker in self._brokers}
        #: Lines about brokers that were offline or did not answer at the start: the ends of their queues are unknown.
        self._unknown = missing(found.offline, unanswered, "not read")
        #: The end offsets of the queues with messages left to read.
        self._left = {each.queue: each.max_offset for each in found.queues if each.queue in readable and each.messages}
        #: From the last check: brokers that are offline, reasons of those that do not answer, and the own positions.
        self._offline: Sequence[OfflineBroker] = ()
        self._silent: Mapping[str, str] = {}
        self._positions: dict[MessageQueue, int] = {}
        #: Deadlines for the brokers that are waited for; one that was back gets a new deadline.
        self._until: dict[str, float] = {}
        self._look_at = time.monotonic() + _LOOK_S

    def reached(self) -> bool:
        """Return whether the group has read everything, except from brokers whose deadline is over."""
        for queue, position in self._read_to().items():
            if position >= self._left.get(queue, 0):
                self._left.pop(queue, None)
        if self._waited_for() and time.monotonic() >= self._look_at:
            began = time.monotonic()
            self._look()
            now = time.monotonic()
            self._look_at = now + max(_LOOK_S, now - began)  # a broker that hangs must not stop the output of the rest
        return self._waited_for() <= self._given_up()

    def unread(self) -> list[str]:
        """Return a line for each broker whose queues were not read to their ends."""
        lines = [*self._unknown, *self._describe(self._given_up(), "not read")]
        if not self._consumer.is_ready:
            lines.append(f"group {self._group}: not joined, no broker of topic {self._topic} has answered")
        return lines

    def _read_to(self) -> dict[MessageQueue, int]:
        positions: dict[MessageQueue, int] = {}
        for queue in self._consumer.assignment:
            with contextlib.suppress(InvalidArgument):  # the queue has moved to another member, whose progress counts
                positions[queue] = self._consumer.position(queue)
        return positions

    def _waited_for(self) -> set[str]:
        left = {queue.broker_name for queue in self._left}
        return left if self._consumer.is_ready else left | self._brokers

    def _given_up(self) -> set[str]:
        return {name for name, until in self._until.items() if time.monotonic() >= until}

    def _look(self) -> None:
        from minimq.admin.admin import Admin

        try:
            with Admin(self._nameserver, timeout_s=min(max(self._max_wait_s, _MIN_TIMEOUT_S), 5.0)) as admin:
                self._check_brokers(admin)
                if not self._left.keys() <= set(self._consumer.assignment):
                    self._check_other_members(admin)
        except MinimqError as error:
            # The consumer reports a deleted topic; a temporary error is retried.
            if not (error.retriable or isinstance(error, TopicNotFound)):
                raise

    def _check_brokers(self, admin: Admin) -> None:
        try:
            route = admin.route(self._topic)
            there, self._offline = {queue.broker_name for queue in route.read_queues()}, route.offline
        except TopicUnavailable as error:  # all of its brokers are offline
            there, self._offline = set(), error.offline
        before, self._positions = self._positions, self._read_to()
        moving = {queue.broker_name for queue, at in self._positions.items() if at != before.get(queue, at)}
        found = admin.describe_topics([self._topic] if there else [])
        unanswered = {name: why for each in found for name, why in each.unanswered.items()}
        self._silent = {name: why for name, why in unanswered.items() if name in there - moving}
        lacking = self._waited_for() - (there - self._silent.keys())
        new, until = lacking - self._until.keys(), time.monotonic() + self._max_wait_s
        self._until = {name: self._until.get(name, until) for name in lacking}
        for line in self._describe(new, f"left to read, waiting up to {self._max_wait_s:g} s"):
            click.echo(line, err=True)

    def _describe(self, names: Collection[str], lacking: str) -> list[str]:
        left = Counter(queue.broker_name for queue in self._left if queue.broker_name in names)
        offline = [replace(each, queues=left[each.broker_name]) for each in self._offline if each.broker_name in left]
        silent = {name: why for name, why in self._silent.items() if name in left}
        forgotten = sorted(left.keys() - {each.broker_name for each in offline} - silent.keys())
        return [
            *missing(offline, silent, lacking),
            *(
                f"{name}: no longer has queues of {self._topic}, {count_of(left[name], 'queue')} {lacking}"
                for name in forgotten
            ),
        ]

    def _check_other_members(self, admin: Admin) -> None:
        mine = set(self._consumer.assignment)
        with contextlib.suppress(GroupNotFound):  # no member has committed yet
            for queue, offset in ((at.queue, at.committed_offset) for at in admin.describe_group(self._group).queues):
                if queue not in mine and offset is not None and offset >= self._left.get(queue, offset + 1):
                    del self._left[queue]
