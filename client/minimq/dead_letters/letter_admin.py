"""The part of `Admin` that concerns dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from minimq.administration.masters import Masters
from minimq.dead_letters.choice import Choice, Chosen, choice_of
from minimq.transport.client_log import client_logger
from minimq_common.errors import InvalidArgument, TopicUnavailable
from minimq_common.moments import moment
from minimq_common.names import DEAD_LETTER_PREFIX, check_group, check_topic, is_group, retry_topic
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:  # other administration does not need to load sending and receiving
    from minimq.dead_letters.dead_letter import DeadLetter
    from minimq.dead_letters.letter_reader import OnDamage
    from minimq.dead_letters.letter_settler import Outcome

log = client_logger(__name__)

#: Called with the number of examined dead letters, and their total number.
Progress = Callable[[int, int], None]
#: Seconds to wait without progress for servers that are away or busy.
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The open dead letters of a group that have the same topic and the same reason.

    Attributes:
        group: the consumer group.
        topic: that they were sent to; None when they do not tell.
        reason: why they were given up.
        count: how many there are.
        oldest, newest: when the first and the last of them failed.
    """

    group: str
    topic: str | None
    reason: str
    count: int
    oldest: datetime
    newest: datetime


class DeadLetterAdmin:
    """Shows dead letters, and sends them again or drops them; users have it as `Admin`.

    A dead letter is open until it was resent or dropped.
    """

    def __init__(self, masters: Masters) -> None:
        self._masters = masters

    def dead_letters(
        self, group: str, *, on_damage: OnDamage | None = None, **chosen: Unpack[Chosen]
    ) -> Iterator[DeadLetter]:
        """Yield the current open dead letters of a group; all, or those that match all of `chosen`.

        Args:
            group: its name.
            on_damage: called with the error of each damaged batch, which is then passed over; its `queue`, `offset` and
                `next_offset` say where it is. By default the error is raised.
            **chosen: which of them; see `Chosen`.

        Raises:
            InvalidArgument: an argument breaks a rule.
            TopicUnavailable, Unavailable: brokers that have them are away.
            DamagedMessages: a batch is damaged, and `on_damage` is not given.
            MiniMQError: another failure of a broker; the text names it.
        """
        choice = choice_of(chosen)
        return self._open_letters(check_group(group), choice, None, on_damage)

    def _open_letters(
        self, group: str, choice: Choice, progress: Progress | None, on_damage: OnDamage | None
    ) -> Iterator[DeadLetter]:
        from minimq.dead_letters.letter_reader import LetterReader  # as above

        with LetterReader(self._masters.calls, group, _PATIENCE_S, on_damage) as reader:
            spans = reader.spans()
            settled = reader.settled(span.queue.broker_name for span in spans)
            seen, total = 0, sum(span.end - span.first for span in spans)
            for span in spans:
                for looked_at, letters in reader.open_letters(span, settled):
                    yield from filter(choice.wants, letters)
                    seen += looked_at
                    if progress is not None:
                        progress(seen, total)

    def count_dead_letters(
        self, group: str | None = None, *, progress: Progress | None = None, on_damage: OnDamage | None = None
    ) -> list[DeadLetterCount]:
        """Return how many open dead letters there are of a group, or of all: by topic and reason, sorted.

        Dead letters on brokers that are away are not counted: `route` of the topic "%DLQ%" and the group names them.

        Args:
            group: its name; None for all.
            progress: called with the number of examined dead letters of a group, and their total number.
            on_damage: as of `dead_letters`.

        Raises:
            MiniMQError: as of `dead_letters`.
        """
        if group is not None:
            return self._counts(check_group(group), progress, on_damage)
        counts: list[DeadLetterCount] = []
        for name in self._groups_with_dead_letters():
            try:
                counts += self._counts(name, progress, on_damage)
            except TopicUnavailable as error:
                log.warning("dead letters: not counted group=%s error=%s", name, error.message)
        return counts

    def _counts(self, group: str, progress: Progress | None, on_damage: OnDamage | None) -> list[DeadLetterCount]:
        found: dict[tuple[str | None, str], list[int]] = {}
        for letter in self._open_letters(group, Choice(), progress, on_damage):
            found.setdefault((letter.topic, letter.reason), []).append(letter.died_ms)
        ordered = sorted(found.items(), key=lambda item: (item[0][0] or "", item[0][1]))
        return [
            DeadLetterCount(group, topic, reason, len(times), moment(min(times)), moment(max(times)))
            for (topic, reason), times in ordered
        ]

    def _groups_with_dead_letters(self) -> list[str]:
        calls = self._masters.calls
        topics = calls.wait(lambda: calls.nameservers.topic_names(calls.timeout_s))
        names = [name.removeprefix(DEAD_LETTER_PREFIX) for name in topics if name.startswith(DEAD_LETTER_PREFIX)]
        return sorted(filter(is_group, names))

    def resend_dead_letters(
        self,
        group: str,
        *,
        to: str | None = None,
        only_group: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
        on_damage: OnDamage | None = None,
        **chosen: Unpack[Chosen],
    ) -> int:
        """Resend the messages of open dead letters, as they were first sent; each once.

        That holds also when this process is killed and the call is repeated by another one: a message is stored
        together with the record that it was resent. A message whose queue is on another broker than its dead letter, or
        of more than 8 MiB, is sent first, so it is resent at least once. All groups that read the topic get the
        messages, unless `only_group` is set.

        Args:
            group: its name.
            to: topic that they are sent to; by default the original topic of each.
            only_group: have this group alone try them again, with all of its tries: after the first of its
                `retry_delays_s`, or, if it receives messages one by one, at once. Those must still be stored, and not
                in a FIFO topic.
            dry_run: only count them.
            progress: called with the number of examined dead letters, and their total number.
            on_damage: as of `dead_letters`.
            **chosen: which of them, all unless given; see `Chosen`.

        Returns:
            How many were resent by this call.

        Raises:
            MiniMQError: as of `dead_letters`; or a topic does not exist, or is not writable. The text has the number of
                resent ones. Repeat the call for the others.
        """
        if to is not None and check_topic(to).startswith("%"):
            raise InvalidArgument(f"messages cannot be sent to {to}: topics that begin with % are minimq's own")
        if only_group and to is not None:
            raise InvalidArgument("only_group sends them to the group itself: leave out the topic")
        reopens = only_group and self._pops(check_group(group))
        if only_group and not reopens:
            to = retry_topic(group)
        choice = choice_of(chosen)
        return self._settle(
            check_group(group), choice, "resent", to, progress, on_damage, dry_run=dry_run, reopens=reopens
        )

    def _pops(self, group: str) -> bool:
        request = broker_pb2.DescribeGroupRequest(group=group)
        answers, _ = self._masters.call_all(self._masters.find_readable(), lambda stub: stub.DescribeGroup, request)
        return any(queue.HasField("popped") for answer in answers.values() for queue in answer.queues)

    def drop_dead_letters(
        self,
        group: str,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        on_damage: OnDamage | None = None,
        **chosen: Unpack[Chosen],
    ) -> int:
        """Mark open dead letters as dropped: they are neither shown nor resent any more.

        They stay in the topic "%DLQ%" and the group until brokers delete them (`--dead-letter-bytes`), or the topic is.

        Args:
            group: its name.
            dry_run: only count them.
            progress: as of `resend_dead_letters`.
            on_damage: as of `resend_dead_letters`.
            **chosen: which of them, all unless given; see `Chosen`.

        Returns:
            How many were dropped by this call.

        Raises:
            MiniMQError: as of `dead_letters`. The text has the number of dropped ones; repeat the call for the others.
        """
        return self._settle(
            check_group(group), choice_of(chosen), "dropped", None, progress, on_damage, dry_run=dry_run
        )

    def _settle(
        self,
        group: str,
        choice: Choice,
        outcome: Outcome,
        to: str | None,
        progress: Progress | None,
        on_damage: OnDamage | None,
        *,
        dry_run: bool,
        reopens: bool = False,
    ) -> int:
        from minimq.dead_letters.letter_settler import LetterSettler  # as above

        settler = LetterSettler(
            self._masters.calls, group, outcome, to, _PATIENCE_S, progress, on_damage, reopens=reopens
        )
        return settler.run(choice, dry_run=dry_run)
