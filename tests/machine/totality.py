"""Every fact can be applied in every state: its entry is already in the log, so it can no longer be rejected."""

from __future__ import annotations

from machine import store
from machine.kernel import GROUPS
from machine.machine import ENDS, Machine
from machine.store import Replay

#: Facts from elsewhere for each entry of the log.
_FACTS_PER_ENTRY = 2


@ENDS.append
def _end(machine: Machine) -> None:
    """Replay the log with random facts between its entries, which name what there is."""
    chance, replay = machine.chance, Replay()
    names = [*GROUPS, "w1", "x", "y", "@p", "plain-0", "plain-1", "fifo-1", "compacted-2", ""]
    numbers = [0, 1, 2, 3, 1 << 40, (1 << 40) + 1, 1 << 50, machine.clock.now_ms]
    for position, entry in machine.log:
        replay.apply_anywhere(position, entry)
        numbers.append(position)
        for _ in range(_FACTS_PER_ENTRY):
            fact = store.random_fact(chance, names, numbers[-30:] + numbers[:8])
            try:
                replay.apply_fact(fact)
            except Exception as error:
                raise AssertionError(f"{fact} cannot be applied: {error!r}") from error
