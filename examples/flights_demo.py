"""A year of flights through minimq: 336,776 departures are sent, consumed by a group, and counted by Spark.

Starts a cluster of its own, compares everything that comes out with the data it put in, and ends with status 1 when
anything differs. Nothing is left running, or on the disk.

    make demo   # or, with Java: pip install '.[spark,demo]' && python examples/flights_demo.py
"""

from __future__ import annotations

import signal
import sys


def run() -> int:
    """Run the demonstration. Returns the exit status; 130 after Ctrl-C."""
    # While the imports take their time there is nothing to clean up: Ctrl-C simply ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flights_steps import main  # see above

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(run())
