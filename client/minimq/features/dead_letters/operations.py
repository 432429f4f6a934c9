"""Dead letters: count, resend and delete them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Unpack

from minimq.admin import values
from minimq.admin.groups import GroupReads
from minimq.admin.operation import HIDDEN, Arguments, Form, Operation, Param, flag, iterating
from minimq.admin.texts import missing
from minimq.admin.topics import TopicReads
from minimq.admin.views import Plan, PlanRow, Rows, Table, View, columns, row_of
from minimq.connection.offline_brokers import by_broker, say_offline
from minimq.features.dead_letters.dead_letter import DeadLetterFilter, Wants, choice_of
from minimq_common.errors import DamagedMessages, InvalidArgument, TopicUnavailable, TransportError, Unavailable
from minimq_common.names import DEAD_LETTER_PREFIX, check_group, check_topic, dead_letter_topic, is_group, retry_topic
from minimq_common.timestamps import moment, timestamp_ms

if TYPE_CHECKING:  # other operations do not load sending and receiving
    from minimq.features.dead_letters.dead_letter import DeadLetter
    from minimq.features.dead_letters.dead_letter_resender import Outcome
    from minimq_common.model import OfflineBroker

log = logging.getLogger(__name__)

#: Seconds to wait without progress for servers that are offline or busy.
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The open dead letters of a group that have the same topic and the same reason."""

    group: str
    #: The topic that they were sent to; None if they do not name it.
    topic: str | None
    reason: str
    count: int
    oldest: datetime
    newest: datetime


#: Called with the error of each damaged batch.
OnDamage = Callable[[DamagedMessages], None]
#: Called with each broker that is offline and has dead letters.
OnAway = Callable[["OfflineBroker"], object]
#: Views find what both callbacks got in `given.collected`.
COLLECTED = Param(is_collected=True)
_ANY_GROUP = Param(complete="groups", metavar="GROUP", is_argument=True)
#: The options that choose dead letters.
_PLACE = (
    "The dead letter with this message id, or at this place, such as broker-a:0@17; `minimq dlq describe` prints both."
)
CHOICE: Final = {
    "since": Param(read=values.past, metavar="TIME"),
    "until": Param(read=values.past, metavar="TIME"),
    "key": Param(metavar="KEY"),
    "reason": Param(metavar="TEXT"),
    "topic": Param(metavar="TOPIC", complete="topics"),
    "ids": Param(flag="--id", metavar="ID|BROKER:QUEUE@OFFSET", help=_PLACE),
}
_ALL = flag("all", "All open dead letters of the group.", "--all")
_PAGE: Final = "/dead-letters/{group}"
_FIELDS: Final = {
    "ids": "Only these",
    "topic": "Only those that were sent to this topic",
    "reason": "Only those with this reason",
    "key": "Only those with this key",
}

_COUNTS = Table("no open dead letters", columns("group topic reason count oldest newest"))


def chosen_of(given: Arguments) -> DeadLetterFilter:
    chosen: DeadLetterFilter = {name: getattr(given, name) for name in DeadLetterFilter.__annotations__}  # type: ignore[assignment]
    return chosen


def _check_some(chosen: DeadLetterFilter, *, is_all: bool) -> None:
    if not is_all and not any(chosen.values()):
        raise InvalidArgument("all is not given, and no choice: choose some, by key or by time")


class _OpenDeadLetters:
    """Counts the selected open dead letters for a plan, for at most `given.max_wait_s`."""

    def __init__(self, admin: DeadLetterOperations, given: Arguments, done: str) -> None:
        _check_some(chosen_of(given), is_all=given.all)
        if given.all and any(chosen_of(given).values()):
            raise InvalidArgument("all excludes a choice")
        #: Their number by the topic that they were sent to; "" for those that do not name it.
        self.topics = Counter[str]()
        self.is_cut = False
        damages: list[DamagedMessages] = []
        max_wait_s, began = getattr(given, "max_wait_s", None), time.monotonic()
        now_ms, wants = time.time_ns() // 1_000_000, choice_of(chosen_of(given))
        until_ms = 1 if given.since is None else timestamp_ms(given.since, 0, "since") + 1
        silent = list[str]()
        try:
            for letter in admin._open_letters(check_group(given.group), choice_of({}), given.progress, damages.append):
                if wants(letter):
                    self.topics[letter.topic or ""] += 1
                    until_ms = max(until_ms, letter.died_ms + 1)
                if max_wait_s is not None and time.monotonic() - began >= max_wait_s:
                    self.is_cut = True
                    break
        except TransportError as error:  # those of the other brokers are counted
            if not self.topics:
                raise
            silent.append(error.message)
        if not self.topics and not self.is_cut:
            check_known(admin, given.group)
        if not self.is_cut:  # messages that become dead letters after the plan stay
            given.until = moment(until_ms)
        elif given.until is None:
            given.until = moment(max(until_ms, now_ms + 1))
        offline = admin._offline_with_letters(given.group)
        #: Notes about dead letters that could not be examined.
        self.missing = [*damage_notes(damages, f"not {done}"), *missing(offline, {}, f"not {done}"), *silent]

    def plan(self, then: Callable[[str], str], note: str) -> Plan:
        """Return the plan; `then` says what becomes of those of a topic."""
        cut = "; at least: others could not be counted in time" if self.is_cut else ""
        rows = [
            PlanRow(f"open dead letters for {topic or 'no topic'}", count, then(topic), note + cut)
            for topic, count in self.topics.most_common()
        ]
        if self.is_cut and not rows:
            rows = [PlanRow("open dead letters", None, then(""), f"could not be counted in time; {note}")]
        return Plan(
            rows=[*rows, *(PlanRow("open dead letters", note=each) for each in self.missing)],
            is_harmless=not rows,
            is_complete=not self.missing,
        )


def _target(group: str, to: str | None, *, only_group: bool) -> str | None:
    if to is not None and check_topic(to).startswith("%"):
        raise InvalidArgument(f"messages cannot be sent to {to}: topics that begin with % are minimq's own")
    if only_group and to is not None:
        raise InvalidArgument("only_group sends them to the group itself: leave out the topic")
    return retry_topic(group) if only_group else to


def _plan_resend(admin: DeadLetterOperations, given: Arguments) -> Plan:
    _target(check_group(given.group), given.to, only_group=given.only_group)
    found = _OpenDeadLetters(admin, given, "resent")
    if given.only_group:
        return found.plan(lambda _: f"sent to {given.group} alone", "each once")
    return found.plan(
        lambda topic: f"sent to {given.to or topic or 'no topic'}", "each once; all groups of it get them"
    )


def _plan_delete(admin: DeadLetterOperations, given: Arguments) -> Plan:
    return _OpenDeadLetters(admin, given, "deleted").plan(lambda _: "deleted", "disk space is freed later")


def _report_offline(offline: Sequence[OfflineBroker], on_offline: OnAway | None, what: str) -> None:
    if on_offline is not None:
        for each in offline:
            on_offline(each)
    elif offline:
        raise Unavailable(f"{what}: {say_offline(offline)}")


def check_known(admin: DeadLetterOperations, group: str) -> None:
    """Raise `GroupNotFound` if the group neither has dead letters nor exists: the name may be mistyped."""
    topic = dead_letter_topic(group)
    if all(route.topic != topic for route in admin.routes()):
        admin.describe_group(group)


def damage_notes(damages: Sequence[DamagedMessages], consequence: str) -> list[str]:
    """Return a line for each damaged batch, and one with the remedy."""
    if not damages:
        return []
    are = "batch is" if len(damages) == 1 else "batches are"
    said = [f"damaged, {consequence}: {error.message}" for error in damages]
    return [*said, f"{len(damages)} {are} damaged: run minimq-broker check on their brokers"]


def _view_counts(
    admin: DeadLetterOperations, given: Arguments, counts: list[DeadLetterCount], _plan: Plan | None
) -> View:
    rows, (damages, offline) = [row_of(each) for each in counts], _collected(given)
    if given.group is not None and not rows:
        check_known(admin, given.group)
    notes = [*damage_notes(damages, "not counted"), *missing(offline, {}, "not counted")]
    return View(json=rows, lines=[Rows(_COUNTS, rows)], notes=notes, is_complete=not damages)


def _collected(given: Arguments) -> tuple[list[DamagedMessages], tuple[OfflineBroker, ...]]:
    damages = [each for each in given.collected if isinstance(each, DamagedMessages)]
    return damages, by_broker(each for each in given.collected if not isinstance(each, DamagedMessages))


def _view_settled(done: str) -> Callable[[object, Arguments, int, Plan], View]:
    def view(_admin: object, given: Arguments, count: int, plan: Plan) -> View:
        damages, offline = _collected(given)
        notes = [*damage_notes(damages, f"not {done}"), *missing(offline, {}, f"not {done}")]
        return replace(
            plan.view([PlanRow(f"dead letters of {given.group} {done}", None, count)]),
            notes=notes,
            is_complete=not given.collected,
        )

    return view


class DeadLetterOperations(TopicReads, GroupReads):
    """Counts, resends and deletes dead letters; a part of `Admin`. One is open until it is resent or deleted."""

    @iterating
    def dead_letters(
        self,
        group: str,
        *,
        on_damage: OnDamage | None = None,
        on_offline: OnAway | None = None,
        **chosen: Unpack[DeadLetterFilter],
    ) -> Iterator[DeadLetter]:
        """Yield the current open dead letters of a group; all, or those that match all of `chosen`.

        Args:
            group: its name.
            on_damage: called with the error of each damaged batch, which is then skipped; its `queue`, `offset` and
                `next_offset` locate the batch. By default the error is raised.
            on_offline: called with each broker that is offline and has dead letters of the group, after those of the
                other brokers. By default an error is raised then.
            **chosen: which of them; see `DeadLetterFilter`.

        Raises:
            TopicUnavailable: all brokers that have them are offline.
            Unavailable: some are offline, and `on_offline` is not given; the text names them.
            DamagedMessages: a batch is damaged, and `on_damage` is not given.
        """
        yield from self._open_letters(check_group(group), choice_of(chosen), None, on_damage)
        _report_offline(self._offline_with_letters(group), on_offline, f"dead letters of group {group} are missing")

    def _open_letters(
        self, group: str, wants: Wants, progress: values.OnProgress | None, on_damage: OnDamage | None
    ) -> Iterator[DeadLetter]:
        from minimq.features.dead_letters.dead_letter_resender import (
            DeadLetterReader,  # other operations do not load it
        )

        with DeadLetterReader(self._masters.calls, group, _TIMEOUT_S, on_damage) as reader:
            yield from reader.letters(reader.spans(), wants, progress)
            reader.check_complete()

    @Operation("dlq list", reads=True, example="dlq list billing --output json", view=_view_counts)
    def count_dead_letters(
        self,
        group: Annotated[str | None, _ANY_GROUP] = None,
        *,
        progress: Annotated[values.OnProgress | None, HIDDEN] = None,
        on_damage: Annotated[OnDamage | None, COLLECTED] = None,
        on_offline: Annotated[OnAway | None, COLLECTED] = None,
    ) -> list[DeadLetterCount]:
        """Count open dead letters of a group, or of all, by topic and reason.

        Of all groups, those on brokers that do not answer are not counted, and logged.

        Args:
            group: its name; of all groups if it is left out.
            progress: called with the number of examined dead letters of a group, and their total number.
            on_damage: see `dead_letters`.
            on_offline: see `dead_letters`; the dead letters of these brokers are not counted.
        """
        counts: list[DeadLetterCount] = []
        for name in self._groups_with_dead_letters() if group is None else [check_group(group)]:
            try:
                counts += self._counts(name, progress, on_damage)
            except TopicUnavailable:  # all of its brokers are offline, see below
                if group is not None and on_offline is None:
                    raise
            except TransportError as error:
                if group is not None:
                    raise
                log.warning("dead letters: not counted group=%s error=%s", name, error.message)
        _report_offline(self._offline_with_letters(group), on_offline, "not all dead letters can be counted")
        return counts

    def _counts(
        self, group: str, progress: values.OnProgress | None, on_damage: OnDamage | None
    ) -> list[DeadLetterCount]:
        found: dict[tuple[str | None, str], list[int]] = {}
        try:
            for letter in self._open_letters(group, choice_of({}), progress, on_damage):
                found.setdefault((letter.topic, letter.reason), []).append(letter.died_ms)
        except TransportError as error:  # those of the other brokers are counted
            if not found:
                raise
            log.warning("dead letters: not all counted group=%s error=%s", group, error.message)
        ordered = sorted(found.items(), key=lambda item: (item[0][0] or "", item[0][1]))
        return [
            DeadLetterCount(group, topic, reason, len(times), moment(min(times)), moment(max(times)))
            for (topic, reason), times in ordered
        ]

    def _offline_with_letters(self, group: str | None) -> tuple[OfflineBroker, ...]:
        """Return the offline brokers and have dead letters of the group, or of any group."""
        offline = self._masters.offline_lookup()
        names = self._groups_with_dead_letters() if group is None else [group]
        return by_broker(each for name in names for each in offline(dead_letter_topic(name)))

    def _groups_with_dead_letters(self) -> list[str]:
        topics = self._masters.topic_names()
        names = [name.removeprefix(DEAD_LETTER_PREFIX) for name in topics if name.startswith(DEAD_LETTER_PREFIX)]
        return sorted(filter(is_group, names))

    @Operation(
        "dlq resend",
        example="dlq resend billing --all --dry-run",
        plan=_plan_resend,
        view=_view_settled("resent"),
        abouts=CHOICE,
        flags=[_ALL],
        forms=[
            Form(
                "resend-letters", _PAGE, "Resend dead letters of {group}", "Resend", fields=_FIELDS, otherwise=_ALL.name
            )
        ],
    )
    def resend_dead_letters(
        self,
        group: values.GroupName,
        *,
        to: Annotated[str | None, Param(metavar="TOPIC", complete="topics")] = None,
        only_group: bool = False,
        progress: Annotated[values.OnProgress | None, HIDDEN] = None,
        on_damage: Annotated[OnDamage | None, COLLECTED] = None,
        on_offline: Annotated[OnAway | None, COLLECTED] = None,
        **chosen: Unpack[DeadLetterFilter],
    ) -> int:
        """Resend open dead letters of a group, as they were first sent.

        Each is resent exactly once, even if you repeat the command after it was killed; at least once if its queue is
        on another broker than the dead letter, if it has more than 8 MiB, or if two commands run at the same time. All
        groups that read the topic receive the messages, or, with `only_group`, this group alone, whose delivery count
        starts again. Messages go to their original queue if it is writable.

        Args:
            group: its name.
            to: send them to this topic instead of their own.
            only_group: send them to this group alone, whose push consumers or work queue consumers get them at once.
            progress: called with the number of examined dead letters, and their total number.
            on_damage: see `dead_letters`.
            on_offline: see `dead_letters`.
            **chosen: which of them, all unless given; see `DeadLetterFilter`.

        Returns:
            How many were resent by this call.

        Raises:
            MinimqError: the text has the number of resent ones, and names brokers that are offline. Repeat the call for
                the others.
        """
        target = _target(check_group(group), to, only_group=only_group)
        return self._settle(group, choice_of(chosen), "resent", target, progress, on_damage, on_offline)

    @Operation(
        "dlq delete",
        example="dlq delete billing --until -30d --yes",
        plan=_plan_delete,
        view=_view_settled("deleted"),
        asks="Delete these dead letters of group {group}?",
        abouts=CHOICE,
        forms=[
            Form(
                "delete-letters",
                _PAGE,
                "Delete dead letters of {group}",
                "Delete",
                fields=_FIELDS,
                typed="group",
                otherwise=_ALL.name,
            )
        ],
    )
    def delete_dead_letters(
        self,
        group: values.GroupName,
        *,
        all: bool = False,  # noqa: A002 - as the option
        progress: Annotated[values.OnProgress | None, HIDDEN] = None,
        on_damage: Annotated[OnDamage | None, COLLECTED] = None,
        on_offline: Annotated[OnAway | None, COLLECTED] = None,
        **chosen: Unpack[DeadLetterFilter],
    ) -> int:
        """Delete dead letters of a group: they are no longer shown or resent.

        They use disk space until brokers delete them (--dead-letter-bytes) or you delete the topic %DLQ%GROUP.

        Args:
            group: its name.
            all: all open dead letters of the group; in place of a choice.
            progress: see `resend_dead_letters`.
            on_damage: see `dead_letters`.
            on_offline: see `dead_letters`.
            **chosen: which of them; see `DeadLetterFilter`.

        Returns:
            How many were deleted by this call; a failure has the number in its text. Repeat the call for the others.
        """
        _check_some(chosen, is_all=all)
        return self._settle(check_group(group), choice_of(chosen), "deleted", None, progress, on_damage, on_offline)

    def _settle(
        self,
        group: str,
        wants: Wants,
        outcome: Outcome,
        to: str | None,
        progress: values.OnProgress | None,
        on_damage: OnDamage | None,
        on_offline: OnAway | None,
    ) -> int:
        from minimq.features.dead_letters.dead_letter_resender import DeadLetterResender  # as above

        settler = DeadLetterResender(self._masters.calls, group, outcome, to, _TIMEOUT_S, progress, on_damage)
        count = settler.run(wants)
        what = f"{count} dead letters of group {group} were {outcome}, others may be left"
        _report_offline(self._offline_with_letters(group), on_offline, what)
        return count
