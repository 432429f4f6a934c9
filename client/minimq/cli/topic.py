"""`minimq topic`: create, list, describe, change and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from minimq.cli.base import count_of, option, output_option, show, show_json, show_table
from minimq.descriptions import name_of
from minimq_common.errors import InvalidArgument
from minimq_common.model import Permission

if TYPE_CHECKING:
    from minimq.admin import Admin

PERMISSIONS = {
    "read-write": Permission.READ_WRITE,
    "read": Permission.READ,
    "write": Permission.WRITE,
    "none": Permission.NONE,
}

_cluster_option = option("--cluster", metavar="NAME", help="Which cluster, when the name server knows several.")
_read_option = option(
    "--read-queues", type=int, metavar="N", help="Queues that consumers see on each broker, if not all."
)
_write_option = option(
    "--write-queues", type=int, metavar="N", help="Queues that producers see on each broker, if not all."
)


def _admin(nameserver: str) -> Admin:
    from minimq.admin import Admin

    return Admin(nameserver)


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command()
@click.argument("name")
@option("--queues", type=int, default=8, show_default=True, metavar="N", help="Queues on each broker.")
@_read_option
@_write_option
@option(
    "--permission",
    type=click.Choice(list(PERMISSIONS)[:-1]),
    default="read-write",
    show_default=True,
    help="What may be done with it.",
)
@_cluster_option
@option("--if-not-exists", is_flag=True, help="Succeed when it is there already with the same settings.")
@click.pass_obj
def create(nameserver: str, /, name: str, permission: str, **settings: Any) -> None:  # noqa: ANN401 - the options
    """Create a topic on every master of the cluster.

    It returns when the name servers show the topic, so that producers find it at once. Repeating a creation that
    failed on some of the brokers completes it.

    Example: minimq topic create orders --queues 16
    """
    with _admin(nameserver) as admin:
        is_new = admin.create_topic(name, permission=PERMISSIONS[permission], **settings)
        _tell(admin, name, "created" if is_new else "exists already, unchanged")


@topic.command()
@click.argument("name")
@option("--queues", type=int, metavar="N", help="Queues on each broker, for consumers and producers.")
@_read_option
@_write_option
@option("--permission", type=click.Choice(list(PERMISSIONS)), help="What may be done with it.")
@_cluster_option
@option("--force", is_flag=True, help="Also when queues that hold messages are not read any more.")
@click.pass_obj
def update(nameserver: str, /, name: str, permission: str | None, **settings: Any) -> None:  # noqa: ANN401 - the options
    """Change a topic on every master that carries it; what is not given stays as it is.

    To shrink a topic, reduce --write-queues, wait until every group has read the rest, then reduce --read-queues with
    --force: what was read is still stored, and more --read-queues bring it back to sight.

    Example: minimq topic update orders --queues 32
    """
    if permission is None and all(settings[count] is None for count in ("queues", "read_queues", "write_queues")):
        raise InvalidArgument("nothing is to be changed: give --queues, --read-queues, --write-queues or --permission")
    with _admin(nameserver) as admin:
        wanted = None if permission is None else PERMISSIONS[permission]
        admin.update_topic(name, permission=wanted, **settings)
        _tell(admin, name, "changed")


@topic.command()
@click.argument("name")
@_cluster_option
@option("--if-exists", is_flag=True, help="Succeed when there is no such topic.")
@click.pass_obj
def delete(nameserver: str, name: str, cluster: str | None, if_exists: bool) -> None:
    """Delete a topic with all its messages.

    A broker that is down keeps the topic and brings it back: delete it again then.

    Example: minimq topic delete orders
    """
    with _admin(nameserver) as admin:
        admin.delete_topic(name, cluster=cluster, if_exists=if_exists)
    click.echo(f"topic {name} deleted")


@topic.command("list")
@output_option
@click.pass_obj
def list_topics(nameserver: str, output: str) -> None:
    """List all topics.

    Example: minimq topic list --output json
    """
    with _admin(nameserver) as admin:
        rows = [
            {
                "topic": route.topic,
                "brokers": [data.broker_name for data in route.queues],
                "read_queues": sum(data.read_queues for data in route.queues),
                "write_queues": sum(data.write_queues for data in route.queues),
                "permission": "/".join(dict.fromkeys(name_of(data.permission) for data in route.queues)),
            }
            for route in admin.routes()
        ]
    headings = {
        "topic": "Topic",
        "brokers": "Brokers",
        "read_queues": "Read queues",
        "write_queues": "Write queues",
        "permission": "Permission",
    }
    show(output, rows, headings)


@topic.command()
@click.argument("name")
@output_option
@click.pass_obj
def describe(nameserver: str, name: str, output: str) -> None:
    """Show the settings of a topic, and where its queues begin and end.

    Example: minimq topic describe orders
    """
    with _admin(nameserver) as admin:
        description = admin.describe_topic(name)
    settings = [
        {
            "broker": item.broker_name,
            "read_queues": item.read_queues,
            "write_queues": item.write_queues,
            "permission": name_of(item.permission),
            "created_at": item.created_at,
        }
        for item in description.settings
    ]
    queues = [
        {
            "broker": item.queue.broker_name,
            "queue": item.queue.queue_id,
            "min_offset": item.min_offset,
            "max_offset": item.max_offset,
            "messages": item.messages,
            "last_stored_at": item.last_stored_at,
        }
        for item in description.queues
    ]
    if output == "json":
        show_json({"topic": name, "messages": description.messages, "brokers": settings, "queues": queues})
        return
    headings = {
        "broker": "Broker",
        "read_queues": "Read queues",
        "write_queues": "Write queues",
        "permission": "Permission",
        "created_at": "Created",
    }
    click.echo(f"{name}: {count_of(description.messages, 'message')}\n")
    show_table(settings, headings)
    click.echo()
    headings = {
        "broker": "Broker",
        "queue": "Queue",
        "min_offset": "Min offset",
        "max_offset": "Max offset",
        "messages": "Messages",
        "last_stored_at": "Last stored",
    }
    show_table(queues, headings)


def _tell(admin: Admin, name: str, done: str) -> None:
    click.echo(f"topic {name} {done}")
    for data in admin.route(name).queues:
        counts = f"{data.write_queues} write queues, {data.read_queues} read queues"
        click.echo(f"  {data.broker_name}: {counts}, {name_of(data.permission)}")
