"""`minimq route`: where the queues of a topic are."""

from __future__ import annotations

import click

from minimq.cli.base import output_option, show


@click.command()
@click.argument("topic")
@output_option
@click.pass_obj
def route(nameserver: str, topic: str, output: str) -> None:
    """Show which brokers carry a topic, as clients are told.

    Example: minimq route orders
    """
    from minimq.administration.admin import Admin
    from minimq.administration.descriptions import name_of

    with Admin(nameserver) as admin:
        found = admin.route(topic)
    rows = [
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
            "permission": name_of(data.permission),
        }
        for data in found.queues
    ]
    headings: dict[str, str] = {
        "broker": "Broker",
        "cluster": "Cluster",
        "master": "Master",
        "slaves": "Slaves",
        "read_queues": "Read queues",
        "write_queues": "Write queues",
        "permission": "Permission",
    }
    if not any(row["slaves"] for row in rows):
        del headings["slaves"]
    show(output, rows, headings)
