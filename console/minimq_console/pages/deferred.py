"""Pages about messages that no queue delivers: dead letters, delayed messages, and half messages of transactions."""

from __future__ import annotations

from dataclasses import replace

from minimq.admin.texts import left_out, missing
from minimq.admin.views import row_of
from minimq.connection.offline_brokers import by_broker
from minimq_common.errors import MinimqError
from minimq_common.model import OfflineBroker
from minimq_console.actions import ACTIONS
from minimq_console.bodies import preview
from minimq_console.page import MAX_KEYS, Data, Page, PageContext

#: Maximum number of transactions that are listed: the oldest.
_MAX_TRANSACTIONS = 1_000

# ---- Dead letters -----------------------------------------------------------------------------------

_LETTER_ACTIONS = (ACTIONS["resend-letters"], ACTIONS["delete-letters"])


def gather_letter_groups(visit: PageContext) -> Data:
    """Return the groups of the last sample that have dead letters."""
    groups = [each.group for each in visit.sample().activity.groups if each.group.dead_letters]
    groups.sort(key=lambda group: (-group.dead_letters, group.group))
    shown, part = visit.parameters.part_of(groups)
    return {"part": part, "groups": [{"group": each.group, "stored": each.dead_letters} for each in shown]}


def gather_letters(visit: PageContext) -> Data:
    group, parameters = visit.parameters.name("group"), visit.parameters
    damages: list[MinimqError] = []
    offline: list[OfflineBroker] = []
    letters, part = visit.ask(
        "the dead letters",
        lambda: parameters.part_from(
            visit.admin.dead_letters(group, on_damage=damages.append, on_offline=offline.append)
        ),
    ).required()
    visit.missing += [*(error.message for error in damages), *missing(offline, {}, "not shown")]
    actions = visit.offers(
        *(action.on(group=group, label=f"{action.form.label} several") for action in _LETTER_ACTIONS)
    )
    rows = [
        row_of(
            each,
            keep=("queue", "topic", "reason", "delivery_count", "died_at", "tag"),
            offset=each.queue_offset,
            letter_topic=each.queue.topic,
            keys=each.keys[:MAX_KEYS],
            size=len(each.body),
            preview=preview(each.body),
            actions=visit.offers(
                *(action.on({"id": each.place, "topic": each.topic or ""}, group=group) for action in _LETTER_ACTIONS)
            ),
        )
        for each in letters
    ]
    return {"group": group, "part": part, "letters": rows, "actions": actions if rows else []}


# ---- Delayed messages -------------------------------------------------------------------------------


def gather_delayed(visit: PageContext) -> Data:
    """Return the number of delayed messages of each topic on this page."""
    search, admin = visit.parameters.text("search"), visit.admin
    names = [
        name
        for name in visit.ask("the topics", admin.list_topics).required()
        if search.lower() in name.lower() and not name.startswith("%")
    ]
    shown, part = visit.parameters.part_of(names)
    totals = visit.ask("the delayed messages", lambda: admin.delayed_totals(shown) if shown else []).or_else([])
    visit.missing += missing(by_broker(offline for each in totals for offline in each.offline), {}, "not counted")
    rows = visit.shown("delayed list", totals)
    found = {row["topic"]: row for row in rows if row["messages"] or not row["offline"]}
    unknown = dict.fromkeys(("messages", "batches", "next_due_at"))
    return {"search": search, "part": part, "topics": [found.get(name, {"topic": name, **unknown}) for name in shown]}


def gather_waiting(visit: PageContext) -> Data:
    """Return the delayed messages of one topic, in the order in which they are due."""
    topic, parameters = visit.parameters.name("topic"), visit.parameters
    route = visit.ask("the brokers of the topic", lambda: visit.admin.route(topic))
    batches, part = visit.ask(
        "the delayed messages", lambda: parameters.part_from(visit.admin.delayed_messages(topic))
    ).required()
    visit.missing += missing(route.required().offline, {}, "not listed")
    rows = visit.shown("delayed list", batches, topic=topic, limit=len(batches))
    for row in rows:
        handle = row["recall_handle"]
        row["actions"] = visit.offers(ACTIONS["recall"].on({"handle": handle}, topic=topic)) if handle else []
    return {"topic": topic, "part": part, "waiting": rows}


# ---- Transactions -----------------------------------------------------------------------------------


def gather_transactions(visit: PageContext) -> Data:
    group, failed = visit.parameters.text("group", most=127), list[str]()
    listed = visit.ask(
        "the transactions",
        lambda: visit.admin.list_transactions(
            group or None,
            limit=_MAX_TRANSACTIONS,
            on_failure=lambda broker, error: failed.append(f"broker {broker}: {error.message}"),
        ),
    ).required()
    visit.missing += [*failed, *left_out(listed.offline, "its transactions are not listed")]
    shown, part = visit.parameters.part_of(listed.transactions)
    ends = ACTIONS["commit-transaction"], ACTIONS["rollback-transaction"]
    rows = visit.shown("transaction list", replace(listed, transactions=shown))
    actions = [visit.offers(*(end.on(group=each.group, number=str(each.number)) for end in ends)) for each in shown]
    found = [{**row, "actions": own} for row, own in zip(rows, actions, strict=True)]
    return {"group": group, "count": listed.count, "part": part, "transactions": found}


PAGES = (
    Page("/dead-letters", "dead_letters.html", gather_letter_groups, "Dead letters", label="Dead letters"),
    Page("/delayed", "delayed.html", gather_delayed, "Delayed messages", label="Delayed", live_s=4.0),
    Page("/transactions", "transactions.html", gather_transactions, "Transactions", label="Transactions"),
    Page("/dead-letters/{group}", "letters.html", gather_letters, "Dead letters", live_s=None),
    Page("/delayed/{topic}", "waiting.html", gather_waiting, "Delayed messages"),
)
