"""To resend dead letters, or to drop them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minimq.dead_letters.choice import Chosen, choice_of
from minimq_common.errors import AccessDenied, InvalidArgument
from minimq_common.names import check_group
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.rights import read_group
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import address, listing

IDS = FormField(
    name="ids",
    label="Only these",
    kind="lines",
    most=20_000,
    hint="Message ids, or places such as broker-a:0@17, with blanks between them; all if it is empty.",
)
TOPIC = FormField(name="topic", label="Only those that were sent to this topic", most=127)
REASON = FormField(name="reason", label="Only those with this reason", most=255)
KEY = FormField(name="key", label="Only those with this key", most=1_000)
FIELDS = (IDS, TOPIC, REASON, KEY)
#: What is carried from the description to the end: dead letters of a later time are not among those described.
UNTIL = FormField(name="until", label="until", most=40)
#: Part of the time of a page in which a description counts dead letters.
_COUNTING = 0.6
#: Ids that may be given.
_MOST_IDS = 500
#: Topics that a description names.
_MOST_TOPICS = 20


def chosen(given: Parameters) -> Chosen:
    """Return which dead letters are meant, as arguments of `Admin`. Raises `InvalidArgument`."""
    ids = IDS.text(given).replace(",", " ").split()
    if len(ids) > _MOST_IDS:
        raise InvalidArgument(f"{IDS.label} has {len(ids):,} ids: at most {_MOST_IDS} are allowed")
    return Chosen(
        ids=ids or None,
        topic=TOPIC.text(given) or None,
        reason=REASON.text(given) or None,
        key=KEY.text(given) or None,
        until=UNTIL.text(given) or None,
    )


def resend_needs(given: Parameters) -> Sequence[Need]:
    """Return the rights to read by the group, and to send to the topic that is named."""
    topic = TOPIC.given(given).strip()
    return (*read_group(given), *((Need(Verb.WRITE, Resource.TOPIC, topic),) if topic else ()))


def plan_resend(visit: Visit) -> ActionPlan:
    """Return how many are resent, and to which topics."""
    found, group = _found(visit), visit.parameters.name("group")
    needs = {Need(Verb.WRITE, Resource.TOPIC, topic) for topic in found.topics if topic}
    if missing := sorted(need.name for need in needs - visit.rights(needs)):
        raise AccessDenied(f"you may not send to {listing(missing)}: fill in a topic to which you may")
    sentences = [f"Resends {found.total} of group {group}."]
    for topic, count in found.topics.most_common(_MOST_TOPICS):
        where = f"to topic {topic}" if topic else "that do not tell their topic, with which it ends"
        sentences.append(f"{count_of(count, 'message')} {where}.")
    sentences.append("Each is resent once, and then open no more. All groups that read these topics get them.")
    return ActionPlan(sentences=tuple(sentences), carried=found.carried)


def plan_drop(visit: Visit) -> ActionPlan:
    """Return how many are dropped."""
    found, group = _found(visit), visit.parameters.name("group")
    return ActionPlan(
        sentences=(
            f"Drops {found.total} of group {group}.",
            "They are shown and resent no more; brokers keep their bytes for a while.",
        ),
        warnings=("It cannot be taken back.",),
        typed=group,
        carried=found.carried,
    )


def resend(visit: Visit, progress: Progress) -> ActionResult:
    """Resend them."""
    group = check_group(visit.parameters.name("group"))
    count = visit.observer.changer.resend_dead_letters(group, progress=_told(progress), **chosen(visit.parameters))
    return _result(group, f"{count_of(count, 'dead letter')} of group {group} {_were(count)} resent.")


def drop(visit: Visit, progress: Progress) -> ActionResult:
    """Drop them."""
    group = check_group(visit.parameters.name("group"))
    count = visit.observer.changer.drop_dead_letters(group, progress=_told(progress), **chosen(visit.parameters))
    return _result(group, f"{count_of(count, 'dead letter')} of group {group} {_were(count)} dropped.")


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """The open dead letters that are meant."""

    #: Their number by the topic that they were sent to; "" for those that do not tell.
    topics: Counter[str]
    #: The moment after the last of them died, in milliseconds since 1970.
    until_ms: int
    is_cut: bool

    @property
    def total(self) -> str:
        """The number of them in words."""
        said = count_of(self.topics.total(), "dead letter")
        return f"{said}, and others that could not be counted in time," if self.is_cut else said

    @property
    def carried(self) -> Mapping[str, str]:
        """The end of them, as a parameter: one that dies after the description is not meant."""
        return {} if self.is_cut else {UNTIL.name: f"{self.until_ms}ms"}


def _found(visit: Visit) -> FoundLetters:
    group, choice = visit.parameters.name("group"), choice_of(chosen(visit.parameters))
    give_up = time.monotonic() + _COUNTING * visit.asking.left_s

    def count() -> FoundLetters:
        topics, until_ms = Counter[str](), 0
        for letter in visit.observer.admin.dead_letters(group, on_damage=lambda _: None):
            if choice.wants(letter):
                topics[letter.topic or ""] += 1
                until_ms = max(until_ms, letter.died_ms + 1)
            if time.monotonic() >= give_up:
                return FoundLetters(topics, until_ms, is_cut=True)
        return FoundLetters(topics, until_ms, is_cut=False)

    found = visit.ask("the dead letters", count).required()
    if not found.topics and not found.is_cut:
        raise InvalidArgument(f"group {group} has no such open dead letters: they were settled, or others are meant")
    return found


def _told(progress: Progress) -> Callable[[int, int], None]:
    return lambda seen, total: progress(f"{seen:,} of {total:,} dead letters were looked at.")


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _result(group: str, said: str) -> ActionResult:
    return ActionResult(said, address("/dead-letters/{group}", {"group": group}))


RESEND = Action(
    name="resend-letters",
    path="/dead-letters/{group}/resend",
    page="/dead-letters/{group}",
    title="Resend dead letters of {group}",
    label="Resend",
    needs=resend_needs,
    fields=lambda _: FIELDS,
    plan=plan_resend,
    run=resend,
)
DROP = Action(
    name="drop-letters",
    path="/dead-letters/{group}/drop",
    page="/dead-letters/{group}",
    title="Drop dead letters of {group}",
    label="Drop",
    needs=read_group,
    fields=lambda _: FIELDS,
    plan=plan_drop,
    run=drop,
)
