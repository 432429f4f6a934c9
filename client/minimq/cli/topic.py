"""`minimq topic`: create, list, describe, change and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from minimq.administration.descriptions import name_of
from minimq.cli.base import count_of, option, output_option, show, show_json, show_table
from minimq.cli.progress import progress_line
from minimq_common.errors import InvalidArgument
from minimq_common.model import Permission

if TYPE_CHECKING:
    from minimq.administration.admin import Admin

PERMISSIONS = {
    "read-write": Permission.READ_WRITE,
    "read": Permission.READ,
    "write": Permission.WRITE,
    "none": Permission.NONE,
}

_cluster_option = option("--cluster", metavar="NAME", help="Which cluster, when the name server knows several.")
_broker_option = option(
    "--broker", "brokers", multiple=True, metavar="NAME", help="Only on this broker; may be given several times."
)
_read_option = option(
    "--read-queues", type=int, metavar="N", help="Queues that consumers see on each broker, if not all."
)
_write_option = option(
    "--write-queues", type=int, metavar="N", help="Queues that producers see on each broker, if not all."
)


def _admin(nameserver: str) -> Admin:
    from minimq.administration.admin import Admin

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
@_broker_option
@option("--if-not-exists", is_flag=True, help="Succeed when it is there already with the same settings.")
@click.pass_obj
def create(nameserver: str, /, name: str, permission: str, **settings: Any) -> None:  # noqa: ANN401 - the options
    """Create a topic on every master of the cluster, or on those named by --broker.

    It returns when the name servers show the topic, so that producers find it at once. Repeating a creation that
    failed on some of the brokers completes it. With --broker, brokers can have different numbers of queues: create the
    topic on each of them with its own.

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
@_broker_option
@option(
    "--ignore-group",
    "ignore_groups",
    multiple=True,
    metavar="GROUP",
    help="Take queues away though this group has not read them; may be given several times.",
)
@option("--force", is_flag=True, help="Take queues away whatever is unread in them.")
@option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --queues waits for groups to read what is taken away.",
)
@click.pass_obj
def update(
    nameserver: str,
    /,
    name: str,
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    timeout_s: float,
    **which: Any,  # noqa: ANN401 - the options that say where and how
) -> None:
    """Change a topic on every master that carries it; what is not given stays as it is.

    --queues changes the number of queues without a message being lost or unread, while producers and consumers run:
    added queues are shown to consumers before producers, and of queues that are taken away consumers read the rest
    first. When a group does not read them in time, the command fails and can be repeated. What is hidden by
    --ignore-group or --force is still stored, and more queues bring it back to sight.

    --read-queues and --write-queues are the single steps of this.

    Example: minimq topic update orders --queues 32
    """
    if (queues, read_queues, write_queues, permission) == (None, None, None, None):
        raise InvalidArgument("nothing is to be changed: give --queues, --read-queues, --write-queues or --permission")
    if queues is not None and (read_queues, write_queues) != (None, None):
        raise InvalidArgument("--queues sets both counts: give it alone, or --read-queues and --write-queues")
    with _admin(nameserver) as admin:
        if (read_queues, write_queues, permission) != (None, None, None):
            wanted = None if permission is None else PERMISSIONS[permission]
            admin.update_topic(name, read_queues=read_queues, write_queues=write_queues, permission=wanted, **which)
        if queues is not None:
            with progress_line() as progress:
                admin.resize_topic(name, queues, timeout_s=timeout_s, progress=progress, **which)
        _tell(admin, name, "changed")


@topic.command()
@click.argument("name")
@_cluster_option
@_broker_option
@option("--if-exists", is_flag=True, help="Succeed when there is no such topic.")
@click.pass_obj
def delete(nameserver: str, /, name: str, **which: Any) -> None:  # noqa: ANN401 - the options
    """Delete a topic with all its messages, from all brokers or from those named by --broker.

    A broker that is down keeps the topic and brings it back: delete it again then.

    Example: minimq topic delete orders
    """
    with _admin(nameserver) as admin:
        admin.delete_topic(name, **which)
    click.echo(f"topic {name} deleted")


@topic.command("list")
@option(
    "--all",
    "with_own",
    envvar="MINIMQ_TOPIC_LIST_ALL",
    is_flag=True,
    help="Also the topics that minimq makes itself, whose names begin with %.",
)
@output_option
@click.pass_obj
def list_topics(nameserver: str, with_own: bool, output: str) -> None:
    """List the topics.

    Those in which a group keeps messages for another try (%RETRY%group), or for good (%DLQ%group), are left out unless
    --all asks for them.

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
            if with_own or not route.topic.startswith("%")
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
