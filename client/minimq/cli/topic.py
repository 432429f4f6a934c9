"""`minimq topic`: create, list, describe, change and delete topics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from minimq.cli.away import away_to_json, tell_away, tell_left_out, tell_unanswered
from minimq.cli.base import confirm, option, output_option, show, show_json
from minimq.cli.completion import complete_groups, complete_topics
from minimq.cli.progress import progress_line
from minimq.cli.table import Table, show_table
from minimq.cli.topic_options import (
    broker_option,
    cluster_option,
    count_option,
    read_option,
    retention_options,
    time_option,
    write_option,
)
from minimq_common.errors import InvalidArgument, MiniMQError, TopicNotFound, TopicUnavailable
from minimq_common.model import PERMISSIONS, permission_name
from minimq_common.names import DEAD_LETTER_PREFIX
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin
    from minimq_common.model import AwayBroker

_TOPICS = Table(
    "no topics",
    {
        "topic": "Topic",
        "brokers": "Brokers",
        "read_queues": "Read queues",
        "write_queues": "Write queues",
        "permission": "Permission",
    },
)
_SETTINGS = Table(
    "no broker carries the topic",
    {
        "broker": "Broker",
        "read_queues": "Read queues",
        "write_queues": "Write queues",
        "permission": "Permission",
        "fifo": "FIFO",
        "compacted": "Compacted",
        "retention_s": "Retention s",
        "retention_bytes": "Retention bytes",
        "created_at": "Created",
    },
)
_QUEUES = Table(
    "no queues",
    {
        "broker": "Broker",
        "queue": "Queue",
        "min_offset": "Min offset",
        "max_offset": "Max offset",
        "messages": "Messages",
        "last_stored_at": "Last stored",
    },
)

#: What `update` changes in one step.
_STEPS = ("read_queues", "write_queues", "permission", "retention_s", "retention_bytes")
#: Columns that are shown if a broker has something there.
_RARE = ("fifo", "compacted", "retention_s", "retention_bytes")


def _admin(nameserver: str) -> Admin:
    from minimq.admin import Admin

    return Admin(nameserver)


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command(short_help="Create a topic.")
@click.argument("name")
@count_option("--queues", default=8, show_default=True, help="Queues on each broker.")
@read_option
@write_option
@option(
    "--permission",
    type=click.Choice(list(PERMISSIONS)[:-1]),
    default="read-write",
    show_default=True,
    help="Permission of clients.",
)
@option("--fifo", is_flag=True, help="Keep the order of messages of one message group.")
@option("--compact", is_flag=True, help="Keep the latest message of each key, and remove older ones.")
@time_option("--min-lag", default="0s", help="Compacted: age at which messages may be removed.")
@time_option("--tombstone-time", default="24h", help="Compacted: time for which tombstones stay.")
@option(
    "--dirty-ratio",
    type=click.FloatRange(0.01, 1),
    default=0.5,
    show_default=True,
    help="Compacted: part of the topic that is not compacted yet at which compaction begins.",
)
@retention_options("default")
@cluster_option
@broker_option
@option("--if-not-exists", is_flag=True, help="Succeed if the topic exists, whatever its settings.")
@option("--same-settings", is_flag=True, help="With --if-not-exists: fail if the existing topic has other settings.")
@click.pass_obj
def create(
    nameserver: str,
    /,
    name: str,
    permission: str,
    compact: bool,
    min_lag: float,
    tombstone_time: float,
    dirty_ratio: float,
    **settings: Any,
) -> None:
    """Create a topic on every master of the cluster, or on those named by --broker.

    The command returns when the name servers show the topic, so that producers find it at once. If a creation failed on
    some of the brokers, repeat it to complete it. To give brokers different numbers of queues, create the topic on each
    of them with --broker.

    Messages for a topic with --fifo need a message group: consumers that take messages one by one get those of one
    group in their order, one after the other. It cannot be changed later.

    A topic with --compact holds state: messages have keys, and the latest message of each key stays forever, until a
    tombstone deletes the key. That and the number of queues cannot be changed later.

    A broker of the cluster that is away does not get the topic. The command names it on stderr and ends with status 1:
    repeat it when the broker is back.

    Example: minimq topic create orders --queues 16
    """
    if name.startswith("%"):
        raise InvalidArgument(
            f"topic name {name!r} begins with %, which is reserved for topics that minimq creates, such as "
            "%DLQ%GROUP: choose another"
        )
    from minimq.administration.compaction import Compaction

    try:
        rules = Compaction(min_lag, tombstone_time, dirty_ratio) if compact else None
    except InvalidArgument as error:
        text = error.message.replace("tombstone_s", "--tombstone-time").replace("min_lag_s", "--min-lag")
        raise error.with_message(text) from None
    with _admin(nameserver) as admin:
        is_new = admin.create_topic(name, permission=PERMISSIONS[permission], compaction=rules, **settings)
        _tell(admin, name, "created" if is_new else "exists already, unchanged")
        lacking = [] if settings["brokers"] else _without(admin, name, settings["cluster"])
    if tell_left_out(lacking, "topic not created there"):
        sys.exit(1)


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@count_option("--queues", help="Queues on each broker, for consumers and producers.")
@read_option
@write_option
@option("--permission", type=click.Choice(list(PERMISSIONS)), help="Permission of clients.")
@retention_options(None)
@cluster_option
@broker_option
@option(
    "--ignore-group",
    "ignore_groups",
    multiple=True,
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Remove queues even if this group has not read them; may be given several times.",
)
@option("--force", is_flag=True, help="Remove queues even if they have unread messages.")
@option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that --queues waits for groups to read the removed queues.",
)
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def update(
    nameserver: str,
    /,
    name: str,
    queues: int | None,
    permission: str | None,
    timeout_s: float,
    yes: bool,
    **options: Any,
) -> None:
    """Change a topic on every master that carries it. Settings that you do not give stay as they are.

    --queues changes the number of queues while producers and consumers run, and loses no message. Consumers see added
    queues before producers do, and finish reading queues before these are removed. If a group does not read them in
    time, the command fails, and you can repeat it. Messages in removed queues are still stored, but groups that begin
    later, and replays, do not see them: on a terminal, the command says how many and asks, unless --yes is given. More
    queues show them again.

    --read-queues and --write-queues are single steps of this.

    Messages that a shorter --retention or --retention-bytes passes can no longer be read once the broker has looked,
    within seconds; their disk is freed later.

    A broker of the topic that is away is not changed. The command names it on stderr and ends with status 1: repeat it
    when the broker is back.

    Example: minimq topic update orders --queues 32
    """
    options["permission"] = None if permission is None else PERMISSIONS[permission]
    steps = {step: options.pop(step) for step in _STEPS}
    has_steps = any(value is not None for value in steps.values())
    if queues is None and not has_steps:
        names = "--queues, --read-queues, --write-queues, --permission, --retention or --retention-bytes"
        raise InvalidArgument(f"nothing to change: give {names}")
    if queues is not None and (steps["read_queues"], steps["write_queues"]) != (None, None):
        raise InvalidArgument("--queues sets both counts: give it alone, or --read-queues and --write-queues")
    left_out: Sequence[AwayBroker] = ()
    with _admin(nameserver) as admin:
        _confirm_hiding(admin, name, queues or steps["read_queues"], options["brokers"], yes=yes)
        if has_steps:
            left_out = admin.update_topic(name, **steps, **options)
        if queues is not None:
            with progress_line() as progress:
                left_out = admin.resize_topic(name, queues, timeout_s=timeout_s, progress=progress, **options)
        _tell(admin, name, "changed")
    if tell_left_out(left_out, "not changed"):
        sys.exit(1)


def _confirm_hiding(admin: Admin, name: str, queues: int | None, brokers: Sequence[str], *, yes: bool) -> None:
    """Say how many messages fewer queues hide, and ask whether to go on."""
    hidden = 0
    with suppress(MiniMQError):  # the change itself says what is wrong
        hidden = admin.describe_topic(name).hidden_by(queues, brokers) if queues else 0
    if hidden:
        click.echo(
            f"{count_of(hidden, 'stored message')} of topic {name} will be hidden from groups that begin later and "
            "from replays; more queues show them again",
            err=True,
        )
        confirm(lambda: f"Change topic {name}?", yes=yes)


@topic.command(short_help="Delete a topic with all its messages.")
@click.argument("name", shell_complete=complete_topics)
@cluster_option
@broker_option
@option("--if-exists", is_flag=True, help="Succeed if there is no such topic.")
@option(
    "--force",
    is_flag=True,
    help="Delete even while a broker of the topic is away, which will bring the topic back when it starts.",
)
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete(nameserver: str, /, name: str, yes: bool, force: bool, **which: Any) -> None:
    """Delete a topic with all its messages, from all brokers or from those named by --broker.

    On a terminal, the command asks for confirmation unless --yes is given. It is refused while a broker of the topic is
    away, since that broker would bring the topic back. With --force, or --broker, the topic is deleted on the others.

    Example: minimq topic delete orders
    """
    with _admin(nameserver) as admin:
        confirm(lambda: _deletion_question(admin, name, which["cluster"], which["brokers"], force=force), yes=yes)
        left_out = admin.delete_topic(name, force=force, **which)
    click.echo(f"topic {name} deleted")
    tell_left_out(left_out, "brings the topic back when it starts: then delete it again")


def _deletion_question(admin: Admin, name: str, cluster: str | None, brokers: Sequence[str], *, force: bool) -> str:
    """Return the question that lists the data lost with a topic; empty if there is nothing to delete."""
    try:
        found = admin.describe_topic(name)
    except (TopicNotFound, TopicUnavailable):
        return ""
    if not force and not brokers and any(cluster in (None, away.cluster) for away in found.away):
        return ""  # the deletion will be refused
    inside = {broker.broker_name for broker in admin.cluster() if cluster in (None, broker.cluster)}
    carriers = [item.broker_name for item in found.settings]
    chosen = [broker for broker in carriers if broker in inside and (not brokers or broker in brokers)]
    messages = sum(item.messages for item in found.queues if item.queue.broker_name in chosen)
    return f"Delete topic {name} with {count_of(messages, 'message')} from {', '.join(chosen)}?" if chosen else ""


@topic.command("list")
@option(
    "--all",
    "with_own",
    envvar="MINIMQ_TOPIC_LIST_ALL",
    is_flag=True,
    help="Include the topics that minimq creates itself, whose names begin with %.",
)
@output_option
@click.pass_obj
def list_topics(nameserver: str, with_own: bool, output: str) -> None:
    """List the topics.

    Topics for retries (%RETRY%group) and dead letters (%DLQ%group) are only counted unless --all is given. Brokers that
    are away are named on stderr; their queues are not counted.

    Example: minimq topic list --output json
    """
    from minimq.routes.away import by_broker

    with _admin(nameserver) as admin:
        every = admin.routes()
    routes = [route for route in every if with_own or not route.topic.startswith("%")]
    rows = [
        {
            "topic": route.topic,
            "brokers": [data.broker_name for data in route.queues],
            "read_queues": sum(data.read_queues for data in route.queues),
            "write_queues": sum(data.write_queues for data in route.queues),
            "permission": "/".join(dict.fromkeys(permission_name(data.permission) for data in route.queues)) or None,
            "away": away_to_json(route.away),
        }
        for route in routes
    ]
    tell_away(by_broker(away for route in routes for away in route.away), "not counted")
    show(output, _TOPICS, rows)
    if output == "table" and len(routes) < len(every):
        dead = sum(route.topic.startswith(DEAD_LETTER_PREFIX) for route in every)
        with_dead = f", {dead} with dead letters" if dead else ""
        hidden = count_of(len(every) - len(routes), "topic")
        click.echo(f"\nnot shown: {hidden} of consumer groups{with_dead}; --all shows all")


@topic.command(short_help="Show the settings and queues of a topic.")
@click.argument("name", shell_complete=complete_topics)
@output_option
@click.pass_obj
def describe(nameserver: str, name: str, output: str) -> None:
    """Show the settings of a topic, and the first offset and the end of each queue.

    Brokers of the topic that are away or do not answer are named on stderr; their messages are not counted.

    Example: minimq topic describe orders
    """
    with _admin(nameserver) as admin:
        description = admin.describe_topic(name)
    settings = [
        {
            "broker": item.broker_name,
            "read_queues": item.read_queues,
            "write_queues": item.write_queues,
            "permission": permission_name(item.permission),
            "fifo": item.fifo,
            "compacted": item.compaction is not None,
            "retention_s": item.retention_s or None,
            "retention_bytes": item.retention_bytes or None,
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
    tell_away(description.away, "not counted")
    tell_unanswered(description.unanswered, "not counted")
    if output == "json":
        show_json(
            {
                "topic": name,
                "messages": description.messages,
                "brokers": [
                    row | {"compaction": None if item.compaction is None else asdict(item.compaction)}
                    for row, item in zip(settings, description.settings, strict=True)
                ],
                "queues": queues,
                "away": away_to_json(description.away),
                "unanswered": dict(description.unanswered),
            }
        )
        return
    click.echo(f"{name}: {count_of(description.messages, 'message')}\n")
    unused = [
        column
        for column in ("fifo", "compacted", "retention_s", "retention_bytes")
        if not any(item[column] for item in settings)
    ]
    show_table(_SETTINGS, settings, without=unused)
    click.echo()
    show_table(_QUEUES, queues)


def _without(admin: Admin, name: str, cluster: str | None) -> list[AwayBroker]:
    """Return the brokers of the cluster that are away and do not carry a topic."""
    carriers = {away.broker_name for away in admin.route(name).away}
    return [
        away for away in admin.away_brokers() if cluster in (None, away.cluster) and away.broker_name not in carriers
    ]


def _tell(admin: Admin, name: str, done: str) -> None:
    click.echo(f"topic {name} {done}")
    for data in admin.route(name).queues:
        counts = f"{count_of(data.write_queues, 'write queue')}, {count_of(data.read_queues, 'read queue')}"
        click.echo(f"  {data.broker_name}: {counts}, {permission_name(data.permission)}")
