"""`minimq cluster`: the brokers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from minimq.administration.activity import say_about_disk
from minimq.administration.descriptions import BrokerStatus
from minimq.cli.base import confirm, duration_of, option, output_option, show, show_json, size_of
from minimq.cli.replica_rows import in_short, masters_of, replication_of, say_without_master
from minimq.cli.table import Row, Table, show_table
from minimq_common.model import PERMISSIONS, Permission, permission_name

_BROKERS = Table(
    "no broker is registered",
    {
        "cluster": "Cluster",
        "broker": "Broker",
        "id": "Route id",
        "address": "Address",
        "state": "State",
        "replica": "Replica",
        "role": "Role",
        "mode": "Mode",
        "term": "Term",
        "in_sync": "In sync",
        "behind": "Behind",
        "permission": "Permission",
        "up_for": "Up for",
        "messages_in": "In",
        "messages_out": "Out",
        "disk": "Disk",
        "full": "Disk full",
    },
)
_CONFLICTS = Table(
    "no conflicts",
    {
        "nameserver": "Name server",
        "broker": "Broker",
        "id": "Id",
        "address": "Address",
        "holder": "Place held by",
        "times": "Times",
        "last_at": "Last seen",
        "reason": "Reason",
    },
)


@click.group()
def cluster() -> None:
    """Show the brokers, and set what clients may do with each."""


@cluster.command(short_help="Show the status of each broker.")
@output_option
@click.pass_obj
def status(nameserver: str, output: str) -> None:
    """Show the report of every registered broker, and the brokers that are away.

    "Replica" is the number with which a replica was started (--id), and which `minimq cluster promote --to` takes;
    "Route id" is its id in routes, where the master has 0. The table leaves out columns without information, such as
    those about replicas if there are none. Name servers remember a departed broker for a while, until they restart;
    `minimq cluster forget` ends that. The exit status is 0 even if a broker is away or does not answer.

    Example: minimq cluster status --output json
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        conflicts = admin.conflicts()
        statuses = admin.broker_status()
    masters = masters_of(statuses)
    rows = [{**_row(item), **replication_of(item, masters)} for item in statuses]
    for conflict in conflicts:
        click.echo(f"name server {conflict.nameserver}: {conflict.reason}", err=True)
    early = [sentence for item in statuses for sentence in say_about_disk(item)]
    for sentence in (*say_without_master(statuses), *early):
        click.echo(sentence, err=True)
    if output == "json":
        show_json(rows)
    else:
        show_table(_BROKERS, [{**row, **_in_short(row), **in_short(row)} for row in rows], without=_uninformative(rows))


@cluster.command(short_help="Show brokers that claim the place of another.")
@output_option
@click.pass_obj
def conflicts(nameserver: str, output: str) -> None:
    """Show brokers that claim the place of another: the same name and id, or the same address.

    A name server lists such a broker until it registers, or until some minutes after its last attempt. With etcd as the
    controller, only the log of the second of two replicas with one number reports them.

    Example: minimq cluster conflicts
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        rows = [
            {
                "nameserver": item.nameserver,
                "cluster": item.cluster,
                "broker": item.broker_name,
                "id": item.broker_id,
                "address": item.address,
                "holder": item.holder_address,
                "times": item.times,
                "first_at": item.first_at,
                "last_at": item.last_at,
                "reason": item.reason,
            }
            for item in admin.conflicts()
        ]
    show(output, _CONFLICTS, rows)


@cluster.command()
@click.argument("broker")
@click.argument("allowed", metavar=f"[{'|'.join(PERMISSIONS)}]", type=click.Choice(list(PERMISSIONS)))
@click.pass_obj
def permission(nameserver: str, broker: str, allowed: str) -> None:
    """Set what clients may do with all topics of a BROKER. The setting outlives restarts of the broker.

    With `read`, producers go to the other brokers while consumers read the rest: use it to empty a broker before you
    take it away. RocketMQ calls this wipeWritePerm, and a later `read-write` addWritePerm. The permission of each topic
    applies as well: see `minimq topic update`. The command returns when the name servers show the change.

    Example: minimq cluster permission broker-a read
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        admin.set_broker_permission(broker, PERMISSIONS[allowed])
    click.echo(f"broker {broker}: permission {allowed}")


@cluster.command(short_help="Forget a BROKER that will not come back.")
@click.argument("broker")
@click.pass_obj
def forget(nameserver: str, broker: str) -> None:
    """Make the name servers forget a BROKER that is away and will not come back.

    Until then, tools and Spark report its queues as missing. Stop a registered broker first. Nothing is deleted: if you
    start the broker again, it returns unchanged. If a broker has come back without some of its topics, for example
    with a new disk, the name servers forget these topics.

    Example: minimq cluster forget broker-b
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        remembered = admin.forget_broker(broker)
    if not remembered:
        text = (
            f"error: no name server remembers a broker {broker} as away: `minimq cluster status` lists those that are"
        )
        click.echo(text, err=True)
        sys.exit(1)
    click.echo(f"broker {broker}: forgotten")


@cluster.command()
@click.argument("broker")
@option("--to", type=int, required=True, metavar="ID", help="Number of the replica, its --id.")
@option("--unclean", is_flag=True, help="Accept a replica that is not in sync: messages that it lacks are LOST.")
@option("--yes", is_flag=True, help="Do not ask for confirmation that messages may be lost.")
@click.pass_obj
def promote(nameserver: str, broker: str, to: int, unclean: bool, yes: bool) -> None:
    """Make another replica of a BROKER its master.

    Only an in-sync replica has every acknowledged message and takes over without loss; `minimq cluster status` shows
    them. The command returns when the replica leads, after about the time of a lease. On a terminal,
    --unclean asks for confirmation unless --yes is given.

    Example: minimq cluster promote broker-a --to 1
    """
    from minimq.admin import Admin

    if unclean:
        confirm(lambda: f"Messages that replica {to} of {broker} does not have will be lost. Continue?", yes=yes)
    with Admin(nameserver) as admin:
        before = [
            (item.report.replication.replica_id, item.report.replication.term)
            for item in admin.broker_status()
            if item.broker_name == broker and item.report is not None and item.report.replication.role == "master"
        ]
        term = admin.promote(broker, to, unclean=unclean)
    already = " already" if (to, term) in before else ""
    click.echo(f"broker {broker}: replica {to} is the master{already}, term {term}")


def _row(item: BrokerStatus) -> Row:
    """Return the known facts about a broker, except its replication."""
    report = item.report
    return {
        "cluster": item.cluster,
        "broker": item.broker_name,
        "id": item.broker_id,
        "address": item.address,
        "state": "up" if item.error is None else item.error,
        "away_since": item.away_since,
        "permission": permission_name(report.permission) if report else None,
        "version": report.version if report else None,
        "started_at": report.started_at if report else None,
        "messages_in": report.messages_in if report else None,
        "messages_out": report.messages_out if report else None,
        "commits": report.commits if report else None,
        "log_start": report.log_start if report else None,
        "log_end": report.log_end if report else None,
        "segments": report.segments if report else None,
        "disk_bytes": report.disk_bytes if report else None,
        "disk_used": round(report.disk_used, 4) if report else None,
        "disk_free_bytes": report.disk_free_bytes if report else None,
        "disk_level": report.disk_level if report else None,
        "segments_deleted": report.segments_deleted if report else None,
        "bytes_deleted": report.bytes_deleted if report else None,
        "bytes_deleted_early": report.bytes_deleted_early if report else None,
        "disk_filled_by_others": report.disk_filled_by_others if report else None,
        "retention_s": report.retention_s if report else None,
        "retention_bytes": report.retention_bytes if report else None,
    }


def _uninformative(rows: Sequence[Row]) -> set[str]:
    """Return the columns without information about any broker."""
    found = {key for key in ("cluster", "id") if len({row[key] for row in rows}) <= 1}
    if not any(row["role"] for row in rows):
        found |= {"role", "replica", "mode", "term", "in_sync", "behind"}
    if {row["permission"] for row in rows} <= {permission_name(Permission.READ_WRITE), None}:
        found |= {"permission"}
    return found


def _in_short(row: Row) -> Row:
    """Return times and sizes in readable form."""
    started_at, disk_bytes, used, level = row["started_at"], row["disk_bytes"], row["disk_used"], row["disk_level"]
    return {
        "up_for": duration_of((datetime.now(UTC) - started_at).total_seconds())
        if isinstance(started_at, datetime)
        else None,
        "disk": size_of(disk_bytes) if isinstance(disk_bytes, int) else None,
        "full": f"{used:.0%}{'' if level == 'normal' else f' ({level})'}" if isinstance(used, float) else None,
    }
