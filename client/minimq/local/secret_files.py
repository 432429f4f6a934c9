"""Files with secrets: written atomically, by one command at a time."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from minimq_common.errors import InvalidArgument

#: Suffix of files that all users may read.
_PUBLIC = ".crt"


@contextmanager
def lock_folder(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Lock a folder against other commands; turns an `OSError` of the block into `InvalidArgument`."""
    opened = -1
    try:
        if make:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened = os.open(directory, os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    except OSError as error:
        does = "write to" if opened >= 0 or make else "read"
        raise InvalidArgument(f"cannot {does} {error.filename or directory}: {error.strerror}") from None
    finally:
        if opened >= 0:
            os.close(opened)


def put_files(files: Mapping[Path, bytes], *, keeps_owners: bool = True) -> None:
    """Write files as `files_ready` does, with an empty block."""
    with files_ready(files, keeps_owners=keeps_owners):
        pass


@contextmanager
def files_ready(files: Mapping[Path, bytes], *, keeps_owners: bool = True) -> Iterator[None]:
    """Write and sync temporary files, run the block, and then rename them to their paths, in this order.

    So an error of the block, or a full disk, changes nothing. New files except certificates are readable by their owner
    only. A replaced file keeps owner and mode, so that a server that runs as another user can still read it.
    """
    made: dict[str, Path] = {}
    try:
        for path, data in files.items():
            opened, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            made[name] = path
            with os.fdopen(opened, "wb") as file:
                _own(opened, path, keeps_owner=keeps_owners)
                file.write(data)
                file.flush()
                os.fsync(opened)
        yield
        for name, path in made.items():
            Path(name).replace(path)
    finally:
        for name in made:
            Path(name).unlink(missing_ok=True)


@contextmanager
def new_file_ready(to: Path | None, text: str, *, replaces: bool) -> Iterator[None]:
    """Write credentials to a temporary file, and move it to `to` if the block succeeds. Raises `InvalidArgument`.

    The content is on disk before the block runs. Unless `replaces`, an empty file reserves the name meanwhile.
    """
    if to is None:
        yield
        return
    try:
        if not replaces:
            os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with files_ready({to.resolve(): text.encode()}):
                yield
        except BaseException:
            if not replaces:
                to.unlink()
            raise
    except OSError as error:
        raise _rejected(to, error) from None


def check_new(to: Path) -> None:
    """Raise `InvalidArgument` if the file exists: `new_file_ready` would reject it."""
    if to.exists():
        raise _rejected(to, FileExistsError())


def _rejected(to: Path, error: OSError) -> InvalidArgument:
    reason = error.strerror
    if isinstance(error, FileExistsError):  # it may be the only copy of a key that is in use
        reason = "the file already exists; give another name, or remove the file if nobody uses the key in it"
    return InvalidArgument(f"cannot write {to}: {reason}")


def make_folder(path: Path) -> None:
    """Make a folder that only its owner may read. Raises `InvalidArgument` for a link, or a folder of another user."""
    path.mkdir(exist_ok=True, mode=0o700)
    owner = path.lstat().st_uid
    if path.is_symlink() or owner not in (os.geteuid(), 0):  # a mounted folder may belong to root
        raise InvalidArgument(
            f"{path} is a link or belongs to another user, who could replace the secrets in it: remove it"
        )
    if owner == os.geteuid():
        path.chmod(0o700)


def _own(opened: int, path: Path, *, keeps_owner: bool) -> None:
    former = path.stat() if keeps_owner and path.exists() else None
    if former is None:
        os.fchmod(opened, 0o644 if path.suffix == _PUBLIC else 0o600)
        return
    with suppress(PermissionError):  # only root may change the owner
        os.fchown(opened, former.st_uid, former.st_gid)
    os.fchmod(opened, stat.S_IMODE(former.st_mode))
