"""Reads an LMDB file through, in a child process: a damaged page may kill the process that reads it.

LMDB has no checksums and trusts its pages: a wrong page number leads out of the file, or to another page, which hides
rows. The walk reads every row, finds each by its key again, and compares their number with that in the root of the
table. The content of rows has checksums of its own.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb

#: Errors of LMDB about damaged pages; not those of a full disk, too little memory and the like.
LMDB_DAMAGE = (
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
#: A file with more rows in its main table has no other tables.
_MAX_TABLES = 8
_MAX_REASON = 300
#: How an answer of the child begins, a line for each file; an empty one if it is readable.
_DAMAGED, _FAILED = "D", "F"
#: Where a meta page has the table of free pages, which begins with the page size, and the number of its transaction.
_FREE_TABLE_AT, _TRANSACTION_AT = 40, 144
#: Page size, flags, depth, numbers of pages and rows, root.
_TABLE = struct.Struct("<IHHQQQQQ")
_PAGE_BYTES, _SHORT, _NUMBER = struct.Struct("<I"), struct.Struct("<H"), struct.Struct("<Q")


class PageDamage(ValueError):
    """The pages of an LMDB file are damaged."""


def unreadable(paths: Sequence[Path]) -> dict[Path, PageDamage | OSError]:
    """Read files that no process writes, in a child process; return why some of them cannot be read."""
    found: dict[Path, PageDamage | OSError] = {}
    left = [*paths]
    while left:
        command = [sys.executable, "-P", __file__, *map(str, left)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        answers = done.stdout.splitlines()
        if len(answers) < len(left):
            if done.returncode >= 0:
                raise OSError(f"a child process cannot read {left[0].parent}: {done.stderr.strip()[-_MAX_REASON:]}")
            answers.append(f"{_DAMAGED}reading its pages ends a process by signal {-done.returncode}")
        for path, answer in zip(left, answers, strict=False):
            if answer:
                found[path] = (PageDamage if answer[0] == _DAMAGED else OSError)(answer[1:])
        left = left[len(answers) :]
    return found


def walk(path: Path) -> None:
    """Read every row of a file. Raises `PageDamage`, `lmdb.Error`, or is killed."""
    _check_transactions(path)
    try:
        with (
            closing(lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=_MAX_TABLES)) as env,
            env.begin(buffers=True) as transaction,
        ):
            main = env.open_db(None, transaction)
            names = _check_rows(transaction, main)
            for table in _tables(env, transaction, names):
                _check_rows(transaction, table)
    except LMDB_DAMAGE as error:
        raise PageDamage(str(error)) from None


def _check_transactions(path: Path) -> None:
    # Transactions are numbered, and write the two meta pages alternately; each lists the pages that it has freed under
    # its number. LMDB opens the meta page with the larger number: if that was lowered, the last commit would be hidden.
    with path.open("rb") as file:
        head = file.read(1 << 16)
        try:
            page_bytes = _PAGE_BYTES.unpack_from(head, _FREE_TABLE_AT)[0]
            metas = [head[page * page_bytes :] for page in range(2)]
            numbers = [_NUMBER.unpack_from(meta, _TRANSACTION_AT)[0] for meta in metas]
            for meta, number in zip(metas, numbers, strict=True):
                _, _, depth, _, _, _, _, root = _TABLE.unpack_from(meta, _FREE_TABLE_AT)
                file.seek(root * page_bytes if depth == 1 else 0)
                if depth == 1 and _last_key(file.read(page_bytes)) != number:
                    raise PageDamage(f"transaction {number} is not the one that has freed pages last")
        except (struct.error, OverflowError, OSError):
            raise PageDamage("its first pages are cut off, or damaged") from None
    if numbers != [0, 0] and (abs(numbers[0] - numbers[1]) != 1 or numbers[0] % 2):
        raise PageDamage(f"pages 0 and 1 are of transactions {numbers[0]} and {numbers[1]}")


def _last_key(leaf: bytes) -> int:
    end_of_nodes = _SHORT.unpack_from(leaf, 12)[0]
    node = _SHORT.unpack_from(leaf, end_of_nodes - 2)[0]
    return int(_NUMBER.unpack_from(leaf, node + 8)[0])


def _check_rows(transaction: lmdb.Transaction, table: Any) -> list[bytes]:
    count, key = 0, b""
    names: list[bytes] = []
    with transaction.cursor(table) as cursor:
        for found, value in cursor:
            before, key = key, bytes(found)
            if count and key <= before:
                raise PageDamage("keys are not in order")
            by_key = transaction.get(key, db=table)
            if by_key is None or len(by_key) != len(value) or bytes(by_key[-1:]) != bytes(value[-1:]):
                raise PageDamage("a row is not found by its key")
            count += 1
            if count <= _MAX_TABLES:
                names.append(key)
    if count != transaction.stat(table)["entries"]:
        raise PageDamage(f"a table has {count} rows, and its root says {transaction.stat(table)['entries']}")
    return names if count <= _MAX_TABLES else []


def _tables(env: lmdb.Environment, transaction: lmdb.Transaction, names: list[bytes]) -> Iterator[Any]:
    for name in names:
        try:
            yield env.open_db(name, transaction, create=False)
        except (lmdb.IncompatibleError, lmdb.BadValsizeError, lmdb.NotFoundError):  # an ordinary row
            continue


def _main() -> None:
    for path in sys.argv[1:]:
        answer = ""
        try:
            walk(Path(path))
        except (PageDamage, lmdb.Error, OSError) as error:
            kind = _DAMAGED if isinstance(error, PageDamage) else _FAILED
            answer = kind + " ".join(str(error).split())[:_MAX_REASON]
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
