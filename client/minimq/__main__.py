"""Entry point of the command `minimq`: Ctrl-C prints no traceback, not even during the imports."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent closed it: occupy the descriptor, so that no other file gets it
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    # During the imports, Ctrl-C ends the process at once: any module could print or swallow a KeyboardInterrupt.
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))
    from minimq_cli.main import main as command  # the slow import

    signal.signal(signal.SIGINT, former)
    command(prog_name="minimq")


if __name__ == "__main__":
    main()
