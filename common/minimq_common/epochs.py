"""The numbers of leases: an epoch tells who granted a queue, and is larger than those of all grants before.

It is the term of the master, and behind it 32 bits. A master counts from 0. In the second half are the epochs of slaves
that stand in for a master while there is none: 11 bits tell such times apart, 20 bits count the grants of one.
"""

from __future__ import annotations

_TERM_BITS = 32
_COUNT_BITS = 20
_OF_SLAVES = 1 << 31
_STAND_INS = 1 << 11


def first_epoch(term: int, stand_in: int | None = None) -> int:
    """Return the epoch behind which the grants of a master are numbered, or those of a slave in its place."""
    first = term << _TERM_BITS
    return first if stand_in is None else first + _OF_SLAVES + ((stand_in % _STAND_INS) << _COUNT_BITS)


def granter(epoch: int) -> int:
    """Return what the epochs have in common that were granted out of one table, and nobody else's have."""
    return epoch >> (_COUNT_BITS if epoch & _OF_SLAVES else _TERM_BITS)
