"""The entry of the command `minimq`: quiet from the first moment when Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command as this process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent closed it; no other file may get its descriptor
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    # Nothing needs to be cleaned up yet, and an exception amid imports could be printed, or swallowed, by any of them.
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))
    from minimq.cli.main import main as command  # this is what takes its time

    signal.signal(signal.SIGINT, former)
    command(prog_name="minimq")


if __name__ == "__main__":
    main()
