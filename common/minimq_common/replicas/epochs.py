"""The numbers of leases: an epoch tells who granted a queue, and is larger than those of all grants before.

It is the term of the master, and behind it 32 bits in which the master counts from 0.
"""

from __future__ import annotations

_COUNT_BITS = 32


def first_epoch(term: int) -> int:
    """Return the epoch behind which the grants of a master are numbered."""
    return term << _COUNT_BITS


def granter(epoch: int) -> int:
    """Return what the epochs have in common that were granted out of one table, and nobody else's have."""
    return epoch >> _COUNT_BITS
