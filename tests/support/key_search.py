"""Secrets that were made in a run, and whether one of them is found where it must not be.

`MINIMQ_TEST_KEYS=1` searches all that a run leaves behind, as tests/README.md tells.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from minimq_common.security.user_key import UserKey

VARIABLE = "MINIMQ_TEST_KEYS"
IS_ON = os.environ.get(VARIABLE, "") == "1"

_KEY = re.compile(rb"mq_[a-z2-7]{8}_([A-Za-z0-9_-]{43})_[0-9a-f]{8}")
_PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", re.DOTALL)
#: Letters of a secret, and at least as many as may be one.
_SIZE = 43
_LETTERS = re.compile(rb"[A-Za-z0-9+/_-]{43,}")
#: Longer ones are searched for each secret; in shorter ones each part is looked up.
_MANY_LETTERS = 4_096
#: Files that are there to hold secrets.
_HOLD_SECRETS = frozenset({".minimq", ".key", ".pem"})


def secrets_in(content: bytes) -> set[bytes]:
    """Return what identifies the user keys and private keys in a text: none of these letters may be anywhere else."""
    found = {match[1] for match in _KEY.finditer(content)}
    for private in _PRIVATE.finditer(content):
        found.update(line[:_SIZE] for line in private[1].split() if len(line) >= _SIZE)
    return found


def secrets_under(folder: Path) -> set[bytes]:
    """Return the secrets in the files of a folder that are there to hold them."""
    return {
        secret for path in _files(folder) if path.suffix in _HOLD_SECRETS for secret in secrets_in(path.read_bytes())
    }


def found_in(content: bytes, secrets: Collection[bytes]) -> bool:
    """Return whether one of some secrets is in a text, or anything else that has the form of a user key."""
    if _KEY.search(content):
        return True
    for match in _LETTERS.finditer(content):
        letters = match[0]
        if len(letters) > _MANY_LETTERS:
            if any(secret in letters for secret in secrets):
                return True
        elif any(letters[at : at + _SIZE] in secrets for at in range(len(letters) - _SIZE + 1)):
            return True
    return False


def files_with(folder: Path, secrets: Collection[bytes]) -> list[Path]:
    """Return the files of a folder that are not there to hold secrets, and have one."""
    return [
        path
        for path in _files(folder)
        if path.suffix not in _HOLD_SECRETS and any(found_in(part, secrets) for part in _data(path))
    ]


def process_texts(root: int | None = None) -> Iterator[bytes]:
    """Yield the command lines and environments of a process and all that it has started, and those these have.

    Args:
        root: id of the process; None for this one.
    """
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if status := _read(folder / "stat"):
            parents.setdefault(int(status.rpartition(b")")[2].split()[1]), []).append(int(folder.name))
    ids = [os.getpid() if root is None else root]
    for number in ids:
        ids += parents.get(number, [])
        yield _read(Path(f"/proc/{number}/cmdline"))
        yield _read(Path(f"/proc/{number}/environ"))


def note_keys(noted: set[bytes]) -> None:
    """Add each user key that this process makes or reads from now on to a set."""
    make = UserKey.__init__

    def noting(self: UserKey, id: str, text: str) -> None:  # noqa: A002 - as the class has it
        make(self, id, text)
        noted.update(secrets_in(text.encode()))

    UserKey.__init__ = noting  # type: ignore[method-assign]


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _data(path: Path) -> Iterator[bytes]:
    """Yield what is in a file, without the holes of one that is sparse."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                return
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            yield os.pread(file.fileno(), end - at, at)
            at = end


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""
