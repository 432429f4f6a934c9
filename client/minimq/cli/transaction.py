"""`minimq transaction`: transactions of transactional producers whose end is not known, and their end by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minimq.cli.base import option, output_option, show, show_json
from minimq.operations.operation import Row, Table
from minimq.operations.words import duration_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq.administration.transaction_admin import ListedTransaction

_OPEN = Table(
    "no open transactions",
    {
        "group": "Producer group",
        "number": "Number",
        "broker": "Broker",
        "topics": "Topics",
        "batches": "Batches",
        "keys": "Keys",
        "age": "Age",
        "checks": "Checks",
        "state": "State",
    },
)


def _admin(nameserver: str) -> Admin:
    from minimq.admin import Admin

    return Admin(nameserver)


@click.group(short_help="List open half messages, or end some by hand.")
def transaction() -> None:
    """List transactions of transactional producers that have not ended, and end them by hand."""


@transaction.command("list", short_help="List the transactions that have not ended.")
@option("--group", metavar="GROUP", help="Only those of this producer group.")
@option("--undecided", is_flag=True, help="Only those about which no producer is asked any more.")
@option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="COUNT",
    help="Show so many at most: the oldest.",
)
@output_option
@click.pass_obj
def list_transactions(nameserver: str, group: str | None, undecided: bool, limit: int, output: str) -> None:
    """List the transactions with half messages that have not ended, the oldest first.

    One that is "open" belongs to a producer that is at work, or will be asked. "Undecided" means that the producer
    group was asked as often as brokers do, and gave no answer: decide by hand, or the transaction expires. "Keys" are
    those of its first message.

    \b
    Examples:
      minimq transaction list
      minimq transaction list --group shop --undecided --output json
    """
    with _admin(nameserver) as admin:
        found = admin.list_transactions(group)
    shown = [each for each in found.transactions if each.is_undecided or not undecided]
    rows = [_row(each) for each in shown[:limit]]
    if output == "json":
        show_json(rows)
    else:
        show(output, _OPEN, [_readable(row) for row in rows])
    if len(shown) > limit or found.count > len(found.transactions):
        click.echo(f"only the oldest {len(rows):,} are shown: see --limit and --group", err=True)


@transaction.command(short_help="Commit a transaction by hand: its messages are delivered.")
@click.argument("group", metavar="GROUP")
@click.argument("number", type=click.IntRange(0), metavar="NUMBER")
@click.pass_obj
def commit(nameserver: str, group: str, number: int) -> None:
    """Commit transaction NUMBER of producer group GROUP: consumers get its messages.

    Fails if it was rolled back before; a transaction has one outcome forever.

    Example: minimq transaction commit shop 4611686018427387904
    """
    from minimq.administration.resolutions import COMMIT

    with _admin(nameserver) as admin:
        admin.end_transaction(group, number, COMMIT)
    click.echo("committed")


@transaction.command(short_help="Roll a transaction back by hand: its messages are dropped.")
@click.argument("group", metavar="GROUP")
@click.argument("number", type=click.IntRange(0), metavar="NUMBER")
@click.pass_obj
def rollback(nameserver: str, group: str, number: int) -> None:
    """Roll transaction NUMBER of producer group GROUP back: its messages are dropped.

    Fails if it was committed before; a transaction has one outcome forever.

    Example: minimq transaction rollback shop 4611686018427387904
    """
    from minimq.administration.resolutions import ROLLBACK

    with _admin(nameserver) as admin:
        admin.end_transaction(group, number, ROLLBACK)
    click.echo("rolled back")


def _row(listed: ListedTransaction) -> Row:
    return {
        "group": listed.group,
        "number": listed.number,
        "broker": listed.broker_name,
        "topics": list(listed.topics),
        "batches": listed.batches,
        "keys": None if listed.keys is None else list(listed.keys),
        "body": None if listed.body is None else listed.body.decode(errors="replace"),
        "age_s": round(listed.age_s, 3),
        "expires_s": round(listed.expires_s, 3),
        "checks": listed.checks,
        "state": "undecided" if listed.is_undecided else "open",
    }


def _readable(row: Row) -> Row:
    topics, keys, age_s = row["topics"], row["keys"], row["age_s"]
    assert isinstance(topics, list)
    assert isinstance(age_s, float)
    return {
        **row,
        "number": str(row["number"]),  # to be copied
        "topics": ", ".join(topics),
        "keys": ", ".join(keys) if isinstance(keys, list) and keys else "-",
        "age": duration_of(age_s),
    }
