"""The entry of the command `minimq`: quiet from the first moment when Ctrl-C ends it."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command as this process."""
    # Nothing needs to be cleaned up yet, and an exception amid imports could be printed, or swallowed, by any of them.
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))
    from minimq.cli.main import main as command  # this is what takes its time

    signal.signal(signal.SIGINT, former)
    command(prog_name="minimq")


if __name__ == "__main__":
    main()
