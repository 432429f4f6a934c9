"""A year of flights through minimq: sends 336,776 departures, consumes them in a group, and counts them with Spark.

Starts its own cluster, compares the results with the data, and exits with status 1 if anything differs. Leaves no
process running and no files behind.

    make demo   # or, with Java: pip install '.[spark,demo]' && python examples/flights_demo.py
"""

from __future__ import annotations

import signal
import sys


def run() -> int:
    """Run the demonstration. Returns the exit status; 130 after Ctrl-C."""
    # There is nothing to clean up during the slow imports: Ctrl-C simply ends the process.
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
