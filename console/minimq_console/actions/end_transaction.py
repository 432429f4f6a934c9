"""To end a transaction with half messages by hand."""

from __future__ import annotations

from minimq import TransactionResolution
from minimq.administration.transaction_admin import ListedTransaction
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_producer_group
from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.rights import end_transactions
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.parameters import Parameters
from minimq_console.texts import duration, listing

RESOLUTION = FormField(
    name="resolution",
    label="End it by",
    kind="choice",
    default="rollback",
    choices=(
        ("commit", "commit: its messages become visible"),
        ("rollback", "rollback: its messages are never delivered"),
    ),
)


def plan(visit: Visit) -> ActionPlan:
    """Return what becomes of its messages."""
    found = _listed(visit)
    what = f"{count_of(found.batches, 'batch', 'batches')} of messages for {listing(found.topics)}"
    said = f"transaction {found.number} of producer group {found.group} on {found.broker_name}, with {what}"
    is_commit = RESOLUTION.text(visit.parameters) == "commit"
    warnings = ["It cannot be taken back."]
    if not found.is_undecided:
        warnings.append("Members of the producer group are still asked how it ends: they may know better.")
    return ActionPlan(
        sentences=(
            f"Commits {said}: they become visible to all groups."
            if is_commit
            else f"Rolls back {said}: they are never delivered.",
            f"It began {duration(found.age_s)} ago.",
        ),
        warnings=tuple(warnings),
    )


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """End it."""
    resolution = TransactionResolution(RESOLUTION.text(visit.parameters))
    group, number = check_producer_group(visit.parameters.name("group")), number_of(visit.parameters)
    visit.observer.changer.end_transaction(group, number, resolution)
    done = "committed" if resolution is TransactionResolution.COMMIT else "rolled back"
    return ActionResult(f"Transaction {number} of producer group {group} was {done}.", "/transactions")


def number_of(given: Parameters) -> int:
    """Return the number in the path. Raises `InvalidArgument`."""
    text = given.name("number")
    if not text.isdecimal() or not text.isascii() or int(text) >= 1 << 63:
        raise InvalidArgument(f"{text[:60]!r} is no number of a transaction: the page of transactions lists them")
    return int(text)


def _listed(visit: Visit) -> ListedTransaction:
    group, number = check_producer_group(visit.parameters.name("group")), number_of(visit.parameters)
    admin = visit.observer.admin
    listed = visit.ask("the transactions", lambda: admin.list_transactions(group)).required()
    for each in listed.transactions:
        if each.number == number:
            return each
    raise InvalidArgument(f"transaction {number} of producer group {group} is not open: it has ended, or never began")


ACTION = Action(
    name="end-transaction",
    path="/transactions/{group}/{number}/end",
    page="/transactions",
    title="End transaction {number} of {group}",
    label="End",
    needs=end_transactions,
    fields=lambda _: (RESOLUTION,),
    plan=plan,
    run=run,
)
