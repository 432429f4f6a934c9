"""The command `minimq-nameserver`."""

from __future__ import annotations

import click

from minimq_common import daemon
from minimq_common.allocator import return_freed_memory
from minimq_common.options import from_command_line
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(daemon.version(), prog_name="minimq-nameserver")
@from_command_line(NameServerOptions, env_prefix="MINIMQ_NAMESERVER")
def main(options: NameServerOptions) -> None:
    """Run a name server: the registry through which clients find the brokers that carry a topic.

    It keeps everything in memory. To have a spare, start several, and give all of their addresses to every broker and
    client; name servers need not know of each other.

    Once it serves, it prints one line "ready nameserver HOST:PORT". SIGTERM or Ctrl-C ends it.
    """
    return_freed_memory()
    daemon.run("nameserver", NameServer(options), log_level=options.log_level, log_format=options.log_format)


if __name__ == "__main__":
    main()
