"""Every flood, of a broker and of a name server, in one table: memory, and how long others wait meanwhile.

    python bench/flood_table.py [pulls_unread reports ...] [--seconds 6]

These are the runs of `floods.py` and `nameserver_floods.py`, which say what is measured, and tell more of each. Others
wait for a server that is flooded, for a processor, and for the canary: on a machine that does something else meanwhile
look at the longest step of the event loop, which is the server's own doing. Before each run memory is warmed, and the
price of a page is in the table: `page_price.py` says why.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click
import flood_attacks
import floods
import nameserver_attacks
import nameserver_floods
from page_price import warm_memory
from rich.console import Console
from rich.table import Table

#: Memory that a server may have, in MiB, and time that another client may wait, in ms.
MOST_MIB, MOST_MS = 512, 250
#: How long the broker is looked at before an attack, in seconds.
_QUIET_S = 1.0
#: Leases of masters, and the patience of the canary of a name server, in seconds.
_LEASE_S, _PATIENCE_S = 3.0, 10.0


class Found(NamedTuple):
    """The effect of one attack.

    Attributes:
        memory_mib: most memory of the server.
        p99_ms: of whom it was longest.
        waited: who that was.
        calm_p99_ms: the same without an attack: before it, or at a name server that nobody attacks.
        step_ms: the longest step of its event loop.
        page_us: price of a page of memory before the attack, in microseconds.
        faults: of others, and of the server.
    """

    server: str
    attack: str
    memory_mib: float
    p99_ms: float
    waited: str
    calm_p99_ms: float
    step_ms: float
    page_us: float
    faults: Sequence[str]

    @property
    def is_ok(self) -> bool:
        """True if it is within its bounds, and others were served."""
        return self.memory_mib < MOST_MIB and self.p99_ms < MOST_MS and not self.faults


def on_broker(attack: str, seconds: float) -> Found:
    """Attack a broker."""
    page_us = warm_memory()
    [row] = floods.whole([attack], seconds, _QUIET_S)
    waited = "send" if row.send_p99_ms >= row.receive_p99_ms else "receive"
    faults = [
        text
        for text, happened in (
            ("the broker ended", row.broker_ended),
            (f"{row.failed} failed", row.failed),
            (f"{row.lost} lost", row.lost),
        )
        if happened
    ]
    calm = row.quiet_send_p99_ms
    return Found("broker", attack, row.peak_mib, row.p99_ms, waited, calm, row.step_ms, page_us, faults)


def on_nameserver(attack: str, seconds: float) -> Found:
    """Attack a name server."""
    page_us = warm_memory()
    line = nameserver_floods.attacked(attack, seconds, _LEASE_S, _PATIENCE_S)
    p99s = {who: p99 for who, (_, p99, _) in line.calls.items() if who != "calm"}
    waited = max(p99s, key=p99s.__getitem__, default="nobody")
    faults = [f"{len(line.failures)} failed"] if line.failures else []
    if line.failovers:
        faults.append(f"{line.failovers} fail-overs")
    return Found(
        "name server",
        attack,
        line.memory_mb * 1e6 / floods.MIB,
        p99s.get(waited, float("inf")),
        waited,
        line.calls["calm"][1] if line.calls else float("inf"),
        line.step_ms[0],
        page_us,
        faults,
    )


def found(attacks: Sequence[str], seconds: float) -> Iterator[Found]:
    """Run the attacks one after the other, those on the broker first."""
    for name in flood_attacks.ATTACKS:
        if not attacks or name in attacks:
            yield on_broker(name, seconds)
    for name in nameserver_attacks.ATTACKS:
        if not attacks or name in attacks:
            yield on_nameserver(name, seconds)


@click.command()
@click.argument("attacks", nargs=-1, type=click.Choice([*flood_attacks.ATTACKS, *nameserver_attacks.ATTACKS]))
@click.option("--seconds", default=6.0, show_default=True, help="How long an attack takes.")
def main(attacks: tuple[str, ...], seconds: float) -> None:
    """Run the ATTACKS, or all of them."""
    table = Table(
        *("server", "attack", "memory, MiB", "p99, ms", "of", "calm p99, ms", "longest step, ms"),
        *("a page, us", "bound", "ok"),
    )
    for each in found(attacks, seconds):
        table.add_row(
            each.server,
            each.attack,
            f"{each.memory_mib:.0f}",
            f"{each.p99_ms:.0f}",
            each.waited,
            f"{each.calm_p99_ms:.0f}",
            f"{each.step_ms:.0f}",
            f"{each.page_us:.1f}",
            f"{MOST_MIB} MiB, {MOST_MS} ms",
            "yes" if each.is_ok else ", ".join(("no", *each.faults)),
        )
        print(each, file=sys.stderr, flush=True)  # a run takes minutes
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
