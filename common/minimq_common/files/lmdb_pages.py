"""Creates LMDB files atomically, and verifies their pages before LMDB reads them.

LMDB has no checksums. A damaged page number leads it out of the file, which crashes the process, and a misplaced page
hides rows. But LMDB pages contain redundant information, and this module checks it: each page contains its own number;
the root of a table counts its pages and rows; keys ascend, and stay between the keys of their parent; a page belongs to
one table, or is free. The content of rows is not checked; `sealed_rows.py` gives them checksums.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import lmdb

from minimq_common.text_units import count_of

#: Map size of LMDB while `make_file` creates a file.
_MAKING_BYTES = 1 << 20

#: Page number, spare bytes, flags, start and end of the free space. A long value has its number of pages instead.
_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
#: Data size and flags (in a branch: lower and upper part of a page number), and the size of the key, which follows.
_NODE = struct.Struct("<IHH")
#: Spare bytes, flags, depth; number of branch, leaf and overflow pages; rows; root.
_TABLE = struct.Struct("<IHHQQQQQ")
_PAGE_NUMBER = struct.Struct("<Q")
#: Magic, version, address and size of the map. Two tables follow, then the last page and the transaction number.
_META = struct.Struct("<IIQQ")
_META_END = struct.Struct("<QQ")

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOWING, _META_PAGE = 0x01, 0x02, 0x04, 0x08
_LONG, _TABLE_DATA = 0x01, 0x02
#: Flags of a table, and of its file.
_INTEGER_KEYS, _NO_FOLDER = 0x08, 0x4000
_NO_ROOT = (1 << 64) - 1
_META_PAGES = 2
#: LMDB's own limit for the depth of trees.
_MAX_DEPTH = 32
#: A transaction may allocate pages at the end of the file and free them again without ever writing them.
_MAX_UNWRITTEN_PAGES = 1 << 16
#: Pages per step of `walk_file`.
_STEP_PAGES = 64
_MAIN, _FREE = "the main table", "the table of free pages"


class PageDamage(ValueError):
    """The pages of an LMDB file contradict each other."""


class TableRoot(NamedTuple):
    """The root of a table, as stored."""

    spare: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    rows: int
    root: int


class _Meta(NamedTuple):
    free: TableRoot
    main: TableRoot
    last_page: int
    number: int


def check_file(path: Path, *, deep: bool = False) -> None:
    """Verify the pages of an LMDB file that no process has open. Raises `PageDamage`, `OSError`."""
    for _ in walk_file(path, deep=deep):
        pass


def walk_file(path: Path, *, deep: bool = False) -> Iterator[None]:
    """Verify the pages of an LMDB file like `check_file`, as a generator of small steps."""
    with _walking(path, deep=deep) as walk:
        yield from walk.run()


def rows_in(path: Path, table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield those keys and values of a table in a damaged file that can be reached through undamaged pages.

    The rows themselves may be damaged. Raises `PageDamage`, `OSError`.
    """
    with _walking(path, deep=True) as walk:
        yield from walk.rows_of(table)


def rows_said_in(path: Path, table: bytes) -> int:
    """Return the number of rows that the root of a table in a damaged file states. Raises `PageDamage`, `OSError`."""
    with _walking(path, deep=True) as walk:
        return walk.table(table).rows


@contextmanager
def _walking(path: Path, *, deep: bool) -> Iterator[_Walk]:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise PageDamage("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                yield _Walk(data, deep=deep)
            except struct.error as error:  # an offset or a page number is outside of the file
                raise PageDamage(f"a page leads out of the file of {len(data)} bytes ({error})") from None


class _Child(NamedTuple):
    """A page of a tree, its depth, and the range of its keys."""

    number: int
    depth: int
    low: bytes
    high: bytes | None


class _Walk:
    def __init__(self, data: mmap.mmap, *, deep: bool) -> None:
        self._data = data
        self._deep = deep
        self._page_bytes = 0
        self._last_page = 0
        #: One byte for each page: 1 if it was visited.
        self._seen = bytearray()
        self._looked_at = 0
        self._counts = [0, 0, 0, 0]

    def run(self) -> Iterator[None]:
        meta = self._begin()
        yield from self._tree(_MAIN, meta.main)
        yield from self._tree(_FREE, meta.free)

    def table(self, name: bytes) -> TableRoot:
        meta = self._begin()
        found = [root for key, root in self._sound(_MAIN, meta.main) if key == name]
        if not found:
            raise PageDamage(f"nothing leads to the table {name.decode()!r}")
        return TableRoot(*_TABLE.unpack(found[0]))

    def rows_of(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self._sound("the table", self.table(name))

    def _sound(self, name: str, table: TableRoot) -> Iterator[tuple[bytes, bytes]]:
        pending = [] if table.root == _NO_ROOT else [_Child(table.root, 1, b"", None)]
        while pending:
            child = pending.pop()
            with suppress(PageDamage, struct.error):
                if child.depth < min(table.depth, _MAX_DEPTH):
                    pending += self._branch(name, child)
                    continue
                page, begins, _ = self._open(name, child.number, _LEAF)
                for at in begins:
                    with suppress(PageDamage, struct.error):
                        yield self._row(name, page, at)

    def _row(self, name: str, page: bytes, at: int) -> tuple[bytes, bytes]:
        size, flags, key_bytes = _NODE.unpack_from(page, at)
        begin = at + _NODE.size + key_bytes
        key = page[at + _NODE.size : begin]
        if flags & _LONG:
            return key, self._long_value(name, _PAGE_NUMBER.unpack_from(page, begin)[0], size, wanted=True)
        return key, page[begin : begin + size]

    def _begin(self) -> _Meta:
        meta = self._meta()
        pages = len(self._data) // self._page_bytes
        if meta.last_page >= pages + _MAX_UNWRITTEN_PAGES:
            raise PageDamage(f"it has {pages} pages of {meta.last_page + 1}")
        self._last_page = meta.last_page
        self._seen = bytearray(meta.last_page + 1)
        self._seen[:_META_PAGES] = b"\1" * _META_PAGES
        return meta

    def _meta(self) -> _Meta:
        if len(self._data) < 512:
            raise PageDamage(f"it is cut off after {len(self._data)} bytes")
        first = _PAGE.size + _META.size
        self._page_bytes = _TABLE.unpack(self._data[first : first + _TABLE.size])[0]
        if self._page_bytes not in (1 << bits for bits in range(9, 16)):
            raise PageDamage(f"page 0 says that pages have {self._page_bytes} bytes")
        metas = [self._meta_at(number) for number in range(_META_PAGES)]
        numbers = [meta.number for meta in metas]
        # Transactions are numbered, and write the two meta pages alternately.
        if numbers != [0, 0] and (abs(numbers[0] - numbers[1]) != 1 or numbers[0] % 2):
            raise PageDamage(f"pages 0 and 1 are of transactions {numbers[0]} and {numbers[1]}")
        for page, meta in enumerate(metas):
            self._check_transaction(page, meta)
        return max(metas, key=lambda meta: meta.number)

    def _check_transaction(self, page: int, meta: _Meta) -> None:
        """Verify the transaction number of a meta page. If it were too low, LMDB would open the transaction before.

        Every transaction but the first frees at least the former root, and lists the freed pages under its number. LMDB
        does not overwrite pages of the last two transactions.
        """
        freed = 0 if meta.free.root == _NO_ROOT else self._last_freed(meta.free)
        if freed != meta.number and (meta.number, freed) != (1, 0):
            raise PageDamage(f"page {page} is of transaction {freed}, and says that it is of {meta.number}")

    def _last_freed(self, free: TableRoot) -> int:
        number = free.root
        for _ in range(_MAX_DEPTH):
            page = self._page(number)
            found, _, flags, lower, _ = _PAGE.unpack_from(page)
            if found != number or flags not in (_BRANCH, _LEAF):
                raise PageDamage(f"{_FREE} leads to page {number}, where another page is")
            [at] = struct.unpack_from("<H", page, lower - 2)
            low, high, key_bytes = _NODE.unpack_from(page, at)
            if flags == _LEAF:
                return int.from_bytes(page[at + _NODE.size : at + _NODE.size + key_bytes], "little")
            number = low | high << 32
        raise PageDamage(f"{_FREE} is deeper than {_MAX_DEPTH} pages")

    def _meta_at(self, number: int) -> _Meta:
        page = self._page(number)
        at = _PAGE.size
        found, _, flags, _, _ = _PAGE.unpack(page[:at])
        magic, version, _, _ = _META.unpack(page[at : at + _META.size])
        if (found, flags, magic, version) != (number, _META_PAGE, _MAGIC, _VERSION):
            raise PageDamage(f"page {number} is not page {number} of an LMDB file")
        at += _META.size
        free = TableRoot(*_TABLE.unpack(page[at : at + _TABLE.size]))
        main = TableRoot(*_TABLE.unpack(page[at + _TABLE.size : at + 2 * _TABLE.size]))
        if (free.spare, free.flags & ~_NO_FOLDER, main.flags) != (self._page_bytes, _INTEGER_KEYS, 0):
            raise PageDamage(f"page {number} has tables of another kind")
        at += 2 * _TABLE.size
        return _Meta(free, main, *_META_END.unpack(page[at : at + _META_END.size]))

    def _page(self, number: int) -> bytes:
        page = self._data[number * self._page_bytes : (number + 1) * self._page_bytes]
        if len(page) != self._page_bytes:
            raise PageDamage(f"page {number} is not in the file, which has {len(self._data)} bytes")
        return page

    # ---- trees --------------------------------------------------------------------------------------

    def _tree(self, name: str, table: TableRoot) -> Iterator[None]:
        self._counts = [0, 0, 0, 0]
        inner: list[tuple[str, TableRoot]] = []
        pending = [] if table.root == _NO_ROOT else [_Child(table.root, 1, b"", None)]
        while pending:
            child = pending.pop()
            if child.depth < table.depth:
                pending += self._branch(name, child)
            else:
                inner += self._leaf(name, child)
            self._looked_at += 1
            if self._looked_at % _STEP_PAGES == 0:
                yield
        self._check_counts(name, table)
        for inner_name, inner_table in inner:
            yield from self._tree(inner_name, inner_table)

    def _check_counts(self, name: str, table: TableRoot) -> None:
        expected = [table.branch_pages, table.leaf_pages, table.overflow_pages, table.rows]
        if not self._deep:  # the number of pages of a long value is in its first page, which was not read
            self._counts[2] = max(self._counts[2], expected[2])
        if self._counts != expected or table.depth > _MAX_DEPTH or (table.root == _NO_ROOT) != (table.depth == 0):
            raise PageDamage(
                f"{name} does not match its own counts ({count_of(self._counts[3], 'row')} in "
                f"{count_of(sum(self._counts[:3]), 'page')} found, {table.rows} in {sum(expected[:3])} recorded)"
            )

    def _claim(self, name: str, number: int, count: int) -> None:
        if not _META_PAGES <= number <= number + count - 1 <= self._last_page:
            raise PageDamage(f"{name} leads to page {number}, and the last one is {self._last_page}")
        if self._seen.find(1, number, number + count) >= 0:
            raise PageDamage(f"{name} leads to page {number}, which is used already")
        self._seen[number : number + count] = b"\1" * count

    def _open(self, name: str, number: int, kind: int) -> tuple[bytes, tuple[int, ...], int]:
        self._claim(name, number, 1)
        page = self._page(number)
        found, _, flags, lower, upper = _PAGE.unpack_from(page)
        if (found, flags) != (number, kind):
            raise PageDamage(f"{name} leads to page {number}, where another page is")
        if not _PAGE.size < lower <= upper <= self._page_bytes or lower % 2:
            raise PageDamage(f"page {number} of {name} has no room for what it says that it has")
        return page, struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size), upper

    def _branch(self, name: str, parent: _Child) -> list[_Child]:
        page, begins, upper = self._open(name, parent.number, _BRANCH)
        self._counts[0] += 1
        keys, numbers, used = [], [], 0
        for at in begins:
            low, high, key_bytes = _NODE.unpack_from(page, at)
            keys.append(_key_of(name, page, at, key_bytes))
            numbers.append(low | high << 32)
            used += _NODE.size + (key_bytes + 1) & ~1
        keys[0] = parent.low  # LMDB ignores the first key of a branch
        self._check_nodes(name, parent, keys, begins, upper, used)
        bounds = [*keys, parent.high]
        return [
            _Child(number, parent.depth + 1, low, high)
            for number, low, high in zip(reversed(numbers), reversed(keys), reversed(bounds), strict=False)
        ]

    def _leaf(self, name: str, leaf: _Child) -> list[tuple[str, TableRoot]]:
        page, begins, upper = self._open(name, leaf.number, _LEAF)
        keys, tables, used = [], [], 0
        is_free = name == _FREE
        for at in begins:
            size, flags, key_bytes = _NODE.unpack_from(page, at)
            key = _key_of(name, page, at, key_bytes)
            keys.append(key)
            begin = at + _NODE.size + key_bytes
            inside = size
            if flags & _LONG:
                inside = _PAGE_NUMBER.size
                value = self._long_value(name, _PAGE_NUMBER.unpack_from(page, begin)[0], size, wanted=is_free)
            else:
                value = page[begin : begin + size] if is_free or flags else b""
            used += (_NODE.size + key_bytes + inside + 1) & ~1
            if is_free:
                self._free(value)
            elif flags & _TABLE_DATA:
                tables.append((f"the table {key.decode(errors='replace')!r}", TableRoot(*_TABLE.unpack(value))))
        self._counts[1] += 1
        self._counts[3] += len(keys)
        self._check_nodes(name, leaf, keys, begins, upper, used)
        if any(table.flags for _, table in tables):
            raise PageDamage(f"page {leaf.number} of {name} has tables of another kind")
        return tables

    def _check_nodes(
        self, name: str, child: _Child, keys: list[bytes], begins: tuple[int, ...], upper: int, used: int
    ) -> None:
        if min(begins) != upper or used != self._page_bytes - upper:
            raise PageDamage(f"page {child.number} of {name} has rows that overlap")
        is_sorted = keys == sorted(set(keys))
        if not is_sorted or keys[0] < child.low or (child.high is not None and keys[-1] >= child.high):
            raise PageDamage(f"page {child.number} of {name} has a key in the wrong place")

    def _long_value(self, name: str, number: int, size: int, *, wanted: bool) -> bytes:
        count = (_PAGE.size - 1 + size) // self._page_bytes + 1
        begin = number * self._page_bytes
        if self._deep or wanted:
            found, _, flags, pages = _OVERFLOW.unpack(self._data[begin : begin + _OVERFLOW.size])
            if (found, flags) != (number, _OVERFLOWING) or pages < count:
                raise PageDamage(f"{name} leads to page {number}, where another page is")
            count = pages  # more than the value needs if it replaced a longer one
        self._counts[2] += count
        self._claim(name, number, count)
        if begin + _OVERFLOW.size + size > len(self._data):
            raise PageDamage(f"page {number} of {name} is not in the file, which has {len(self._data)} bytes")
        return self._data[begin + _OVERFLOW.size : begin + _OVERFLOW.size + size] if wanted else b""

    def _free(self, data: bytes) -> None:
        [count] = _PAGE_NUMBER.unpack_from(data)
        if len(data) < (count + 1) * _PAGE_NUMBER.size:
            raise PageDamage(f"a list of {count} free pages has {len(data)} bytes")
        for number in struct.unpack_from(f"<{count}Q", data, _PAGE_NUMBER.size):
            self._claim(_FREE, number, 1)


def _key_of(name: str, page: bytes, at: int, size: int) -> bytes:
    key = page[at + _NODE.size : at + _NODE.size + size]
    return key[::-1] if name == _FREE else key  # these are little-endian numbers


def make_file(path: Path, tables: Iterable[bytes] = ()) -> None:
    """Create an LMDB file with named tables, synced. If interrupted, the file exists completely or not at all."""
    made = path.with_name(f"{path.name}.new")
    try:
        made.unlink(missing_ok=True)
        names = list(tables)
        env = lmdb.open(str(made), subdir=False, map_size=_MAKING_BYTES, max_dbs=len(names), lock=False)
        try:
            with env.begin(write=True) as transaction:
                for name in names:
                    env.open_db(name, transaction)
            env.sync(force=True)
        finally:
            env.close()
        made.rename(path)
        sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            made.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Sync a directory, so that new and removed names survive a power failure."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
