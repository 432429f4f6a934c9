"""Small changes of what is valid, chosen at random: they get further than noise, which the first check rejects."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Final

#: Numbers at the edges of their types, and of the bounds that the formats have.
EDGES: Final = (
    *(0, 1, 2, 3, 4, 7, 8, 127, 128, 255, 256, 1023, 1024, 1025, 4095, 4096, 32_767, 32_768, 65_535, 65_536),
    *((1 << bits) + difference for bits in (20, 24, 26, 28, 30, 31, 32, 48, 53, 62) for difference in (-1, 0, 1)),
    *((1 << 63) - 1, 253_402_300_799_999, 253_402_300_800_000),
)
SIGNED: Final = (*EDGES, *(-number for number in EDGES), -(1 << 63))

#: Characters and pieces that mean something to some decoder, and some that mean something to none.
PIECES: Final = (
    *(
        "",
        " ",
        "\t",
        "\n",
        "\r\n",
        "\0",
        "'",
        '"',
        "''",
        "\\",
        "/",
        "//",
        "://",
        ":",
        ",",
        ";",
        ".",
        "..",
        "-",
        "+",
        "%",
    ),
    *("|", "||", "&&", "(", ")", "[", "]", "{", "}", "<", ">", "=", "<>", "!=", "*", "?", "#", "@", "_", "~", "^", "$"),
    *(
        "0",
        "1",
        "-1",
        "9" * 19,
        "9" * 400,
        "1e400",
        "1e-9999",
        "0x10",
        "0.1",
        ".",
        "1.2.3",
        "1_000",
        "\u0663",
        "\u00b2",
    ),
    *("NaN", "inf", "-inf", "null", "true", "false", "None", "AND", "OR", "NOT", "IS NULL", "IN", "BETWEEN", "ms", "s"),
    *(
        "earliest",
        "latest",
        "broker-a",
        "t",
        "%RETRY%g",
        "\ufeff",
        "\u00fc",
        "\u20ac",
        "\U0001f600",
        "\ud800",
        "\u2028",
    ),
    *("Z", "T", "2026-01-31T08:00Z", "-24h", "9999-12-31T23:59:59Z", "0001-01-01T00:00+23:59", "64MiB", "3d", "\x7f"),
)

#: Most characters of a text, which what is quadratic in them takes no long time for.
_MAX: Final = 6000


def number(rng: Random, *, signed: bool = True) -> int:
    """Return a number, mostly one at an edge."""
    kind = rng.random()
    if kind < 0.4:
        return rng.randrange(10)
    if kind < 0.9:
        return rng.choice(SIGNED if signed else EDGES)
    return rng.randrange(-(1 << 63) if signed else 0, 1 << 63)


def blob(rng: Random, data: bytes, times: int = 3) -> bytes:
    """Return bytes with one to some changes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, times)):
        _BLOB_CHANGES[rng.randrange(len(_BLOB_CHANGES))](rng, changed)
    return bytes(changed)


def text(rng: Random, samples: Sequence[str], times: int = 3) -> str:
    """Return one of the samples with none to some changes."""
    found = rng.choice(samples)
    for _ in range(rng.randint(0, times)):
        place, kind = rng.randint(0, len(found)), rng.random()
        if kind < 0.4:
            found = found[:place] + rng.choice(PIECES) + found[place:]
        elif kind < 0.6:
            found = found[:place] + found[place + rng.randint(1, 5) :]
        elif kind < 0.75:
            found = found[:place] + rng.choice(samples)[place:]
        elif kind < 0.85:
            found = found[:place] + chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) + found[place:]
        elif kind < 0.95:
            end = place + rng.randint(1, 8)
            found = found[:place] + found[place:end] * rng.choice((2, 3, 50)) + found[end:]
        else:
            found = found[:place] + rng.choice(PIECES) * rng.choice((10, 300, 5000)) + found[place:]
    return found[:_MAX]


def _flip(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(
            (0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xDF, 0xFE, 0xFF, rng.randrange(256))
        )


def _insert(rng: Random, data: bytearray) -> None:
    place = rng.randint(0, len(data))
    data[place:place] = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 100)))


def _remove(rng: Random, data: bytearray) -> None:
    place = rng.randint(0, len(data))
    del data[place : place + rng.choice((1, 1, 2, 4, 8, 100))]


def _cut(rng: Random, data: bytearray) -> None:
    del data[rng.randint(0, len(data)) :]


def _repeat(rng: Random, data: bytearray) -> None:
    start = rng.randint(0, len(data))
    part = data[start : start + rng.randint(1, 40)]
    place = rng.randint(0, len(data))
    data[place:place] = part * rng.choice((1, 1, 2, 30))


def _number(rng: Random, data: bytearray) -> None:
    code = rng.choice(["<H", "<I", "<Q", ">H", ">I", ">Q"])
    width = struct.calcsize(code)
    if len(data) >= width:
        place = rng.randint(0, len(data) - width)
        struct.pack_into(code, data, place, rng.choice(SIGNED) & ((1 << 8 * width) - 1))


_BLOB_CHANGES = (_flip, _flip, _set, _set, _insert, _remove, _cut, _repeat, _number, _number)
