"""Checksums for the rows of an LMDB table: one per row, and one row with the sum of all others."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    import lmdb

#: Key of the row with the sum: ["sum"] in msgpack. A release that does not know this row rejects it as an unknown kind.
SUM_KEY = b"\x91\xa3sum"
#: [number of rows, sum of their checksums modulo 2^63] in msgpack.
_SUM = struct.Struct(">BBQBQ")
_ARRAY_OF_TWO, _UINT64 = 0x92, 0xCF
_MODULUS = 1 << 63
_CRC_BYTES = 4


class RowDamage(ValueError):
    """A row or a table does not match its checksum."""


def seal(key: bytes, value: bytes) -> bytes:
    """Return a value as stored: the CRC-32C of the row, then the value."""
    return int(google_crc32c.value(key + value)).to_bytes(_CRC_BYTES, "little") + value


def unseal(key: bytes, stored: bytes) -> bytes:
    """Verify a stored row and return its value. Raises `RowDamage`."""
    value = stored[_CRC_BYTES:]
    if seal(key, value) != stored:
        raise RowDamage("a row does not match its CRC-32C")
    return value


def unsealed(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Verify the stored rows of a table, and yield their keys and values without the sum."""
    count = total = 0
    found: bytes | None = None
    for key, stored in rows:
        value = unseal(key, stored)
        if key == SUM_KEY:
            found = value
            continue
        count, total = count + 1, (total + _crc_of(stored)) % _MODULUS
        yield key, value
    if found != _packed(count, total) and (count or found is not None):
        raise RowDamage(f"its {count} rows are not those that their sum is of: rows are missing, or are older ones")


def change(transaction: lmdb.Transaction, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Put rows, sealed by `seal`, or delete those with None, and update the sum."""
    stored_sum, count, total = transaction.get(SUM_KEY), 0, 0
    if stored_sum is not None:
        try:
            _, _, count, _, total = _SUM.unpack(unseal(SUM_KEY, bytes(stored_sum)))
        except struct.error as error:
            raise RowDamage(f"the sum of all rows is damaged: {error}") from None
    for key, stored in rows:
        before = transaction.pop(key) if stored is None else transaction.replace(key, stored)
        if before is not None:
            count, total = count - 1, total - _crc_of(bytes(before))
        if stored is not None:
            count, total = count + 1, total + _crc_of(stored)
    transaction.put(SUM_KEY, seal(SUM_KEY, _packed(count, total)))


def _packed(count: int, total: int) -> bytes:
    return _SUM.pack(_ARRAY_OF_TWO, _UINT64, count, _UINT64, total % _MODULUS)


def _crc_of(stored: bytes) -> int:
    return int.from_bytes(stored[:_CRC_BYTES], "little")
