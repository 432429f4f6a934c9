"""`minimq group delete`: delete a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minimq.cli.away import tell_left_out
from minimq.cli.base import confirm, option
from minimq.cli.completion import complete_groups
from minimq_common.names import dead_letter_topic
from minimq_common.words import count_of

if TYPE_CHECKING:
    from minimq.admin import Admin


@click.command(short_help="Delete a group: its offsets, and messages that wait for a retry.")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@option("--dead-letters", is_flag=True, help="Delete its dead letters as well.")
@option(
    "--force",
    is_flag=True,
    help="Delete even while members are connected, which will start over, or brokers are away, which will bring the "
    "group back.",
)
@option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete(nameserver: str, name: str, dead_letters: bool, force: bool, yes: bool) -> None:
    """Delete a consumer GROUP: its offsets, and the messages that wait for a retry.

    A group that later uses this name is a new group. Deletion is refused, unless --force is given, while members are
    connected or a broker is away, which would bring the group back when it starts. Dead letters are kept unless
    --dead-letters is given. On a terminal, the command asks for confirmation unless --yes is given.

    Brokers automatically delete a group that is unused for a week (--group-expiry).

    Example: minimq group delete billing --yes
    """
    from minimq.admin import Admin

    with Admin(nameserver) as admin:
        confirm(lambda: _question(admin, name, dead_letters=dead_letters), yes=yes)
        left_out = admin.delete_group(name, force=force, dead_letters=dead_letters)
        kept = dead_letter_topic(name)
        is_kept = kept in admin.list_topics()
    click.echo(f"group {name} deleted" + (f"; its dead letters are kept in topic {kept}" if is_kept else ""))
    tell_left_out(left_out, "brings the group back when it starts, if it knows the group: then delete it again")


def _question(admin: Admin, name: str, *, dead_letters: bool) -> str:
    """Return the question that lists the data lost with a group. Raises the errors of `Admin.describe_group`."""
    found = admin.describe_group(name)
    gone = f"offsets in {count_of(len({queue.queue.topic for queue in found.queues}), 'topic')}"
    gone += f", {count_of(found.retrying, 'message')} waiting for a retry" if found.retrying else ""
    gone += f", {count_of(found.dead_letters, 'dead letter')}" if dead_letters else ""
    return f"Delete group {name} ({gone})?"
