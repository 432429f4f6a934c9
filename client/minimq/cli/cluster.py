"""`minimq cluster`: the brokers."""

from __future__ import annotations

import click

from minimq.cli.base import output_option, show


@click.group()
def cluster() -> None:
    """Look at the brokers."""


@cluster.command()
@output_option
@click.pass_obj
def status(nameserver: str, output: str) -> None:
    """Show every broker that is registered, and what it says of itself.

    The exit status is 0 also when one of them does not answer.

    Example: minimq cluster status --output json
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        rows = []
        for item in admin.broker_status():
            report = item.report
            rows.append(
                {
                    "cluster": item.cluster,
                    "broker": item.broker_name,
                    "id": item.broker_id,
                    "address": item.address,
                    "state": "up" if item.error is None else item.error,
                    "version": report.version if report else None,
                    "started_at": report.started_at if report else None,
                    "messages_in": report.messages_in if report else None,
                    "messages_out": report.messages_out if report else None,
                    "commits": report.commits if report else None,
                    "log_start": report.log_start if report else None,
                    "log_end": report.log_end if report else None,
                    "segments": report.segments if report else None,
                    "disk_bytes": report.disk_bytes if report else None,
                }
            )
    headings = {
        "cluster": "Cluster",
        "broker": "Broker",
        "id": "Id",
        "address": "Address",
        "state": "State",
        "started_at": "Started",
        "messages_in": "In",
        "messages_out": "Out",
        "log_end": "Log end",
        "disk_bytes": "Disk bytes",
    }
    show(output, rows, headings)
