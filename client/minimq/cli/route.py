"""`minimq route`: the brokers and queues of a topic."""

from __future__ import annotations

import click

from minimq.cli.away import away_to_json, tell_away
from minimq.cli.base import output_option, show_json
from minimq.cli.completion import complete_topics
from minimq.cli.table import Row, Table, show_table
from minimq_common.model import permission_name

_ROUTE = Table(
    "no broker carries the topic",
    {
        "broker": "Broker",
        "cluster": "Cluster",
        "master": "Master",
        "slaves": "Slaves",
        "read_queues": "Read queues",
        "write_queues": "Write queues",
        "permission": "Permission",
    },
)


@click.command(short_help="Show the brokers of a topic, as clients see them.")
@click.argument("topic", shell_complete=complete_topics)
@output_option
@click.pass_obj
def route(nameserver: str, topic: str, output: str) -> None:
    """Show the brokers of a topic, as clients see them; brokers that are away are named on stderr.

    Example: minimq route orders
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        found = admin.route(topic)
    rows: list[Row] = [
        {
            "broker": data.broker_name,
            "cluster": found.brokers[data.broker_name].cluster,
            "master": found.master_of(data.broker_name),
            "slaves": [
                f"{broker_id}={address}"
                for broker_id, address in found.brokers[data.broker_name].addresses.items()
                if broker_id
            ],
            "read_queues": data.read_queues,
            "write_queues": data.write_queues,
            "permission": permission_name(data.permission),
            "away": None,
        }
        for data in found.queues
    ]
    # In JSON each broker is a row; a table has only those in the route.
    gone = [
        {**dict.fromkeys(rows[0]), "broker": away.broker_name, "cluster": away.cluster, "away": shown}
        for away, shown in zip(found.away, away_to_json(found.away), strict=True)
    ]
    if output == "json":
        show_json([*rows, *gone])
        return
    tell_away(found.away, "not in the route")
    show_table(_ROUTE, rows, without=() if any(row["slaves"] for row in rows) else {"slaves"})
