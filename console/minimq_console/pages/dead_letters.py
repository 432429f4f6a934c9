"""Dead letters: how many each group has, and those of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain, islice

import msgspec

from minimq.dead_letters.dead_letter import DeadLetter
from minimq_common.errors import DamagedMessages
from minimq_console.action import Offer
from minimq_console.body_text import preview
from minimq_console.operation_actions import FORMS
from minimq_console.page import Page, PageData, Visit
from minimq_console.table_part import TablePart, part_of

_ACTIONS = (FORMS["resend-letters"], FORMS["drop-letters"])
#: Dead letters that one may skip: each is read anew.
_MOST_SKIPPED = 10_000


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """A group with dead letters."""

    group: str
    stored: int


class DeadLettersPage(PageData, frozen=True, kw_only=True):
    """The groups with dead letters."""

    part: TablePart
    groups: tuple[DeadLetterGroup, ...]


class LetterRow(msgspec.Struct, frozen=True):
    """One open dead letter."""

    broker: str
    queue_id: int
    offset: int
    letter_topic: str
    #: To which the message was sent; None if it does not tell.
    topic: str | None
    reason: str
    tries: int
    died_at: datetime
    tag: str | None
    keys: tuple[str, ...]
    size: int
    preview: str
    #: Those that the visitor may use on it.
    actions: tuple[Offer, ...] = ()


class LettersPage(PageData, frozen=True, kw_only=True):
    """Open dead letters of one group."""

    group: str
    #: Number of open dead letters before those that are shown.
    skipped: int
    #: How many are shown at most.
    rows: int
    has_more: bool
    letters: tuple[LetterRow, ...]


def gather_groups(visit: Visit) -> DeadLettersPage:
    """Return the groups of the last sample that have dead letters."""
    bounds = visit.parameters.rows()
    sample = visit.sample()
    counts: Mapping[str, int] = (
        {each.group.group: each.group.dead_letters for each in sample.activity.groups} if sample.activity else {}
    )
    rows = sorted(
        (DeadLetterGroup(group, stored) for group, stored in counts.items() if stored),
        key=lambda row: (-row.stored, row.group),
    )
    shown, part = part_of(rows, bounds)
    return DeadLettersPage(part=part, groups=tuple(shown), missing=visit.missing)


def gather_letters(visit: Visit) -> LettersPage:
    """Return open dead letters of one group."""
    group = visit.parameters.name("group")
    skip, count = visit.parameters.rows(most_skipped=_MOST_SKIPPED)
    damages: list[str] = []

    def note(error: DamagedMessages) -> None:
        damages.append(error.message)

    def read() -> list[DeadLetter]:
        letters = visit.observer.admin.dead_letters(group, on_damage=note)
        return list(islice(letters, skip, skip + count + 1))

    found = visit.ask("the dead letters", read).required()
    return LettersPage(
        group=group,
        skipped=skip,
        rows=count,
        has_more=len(found) > count,
        letters=_rows(visit, group, found[:count]),
        actions=visit.offers(*(action.on(group=group, label=f"{action.label} several") for action in _ACTIONS))
        if found
        else (),
        missing=(*visit.missing, *damages),
    )


def _rows(visit: Visit, group: str, letters: Sequence[DeadLetter]) -> tuple[LetterRow, ...]:
    targets = [
        [action.on({"id": letter.place, "topic": letter.topic or ""}, group=group) for action in _ACTIONS]
        for letter in letters
    ]
    offered = {offer.address: offer for offer in visit.offers(*chain.from_iterable(targets))}
    return tuple(
        _row(letter, tuple(offered[target.address] for target in own if target.address in offered))
        for letter, own in zip(letters, targets, strict=True)
    )


def _row(letter: DeadLetter, actions: tuple[Offer, ...]) -> LetterRow:
    return LetterRow(
        broker=letter.queue.broker_name,
        queue_id=letter.queue.queue_id,
        offset=letter.queue_offset,
        letter_topic=letter.queue.topic,
        topic=letter.topic,
        reason=letter.reason,
        tries=letter.tries,
        died_at=letter.died_at,
        tag=letter.tag,
        keys=tuple(letter.keys[:20]),
        size=len(letter.body),
        preview=preview(letter.body),
        actions=actions,
    )


PAGE = Page(
    path="/dead-letters",
    template="dead_letters.html",
    gather=gather_groups,
    title="Dead letters",
    label="Dead letters",
)
GROUP_PAGE = Page(
    path="/dead-letters/{group}", template="letters.html", gather=gather_letters, title="Dead letters", live_s=None
)
