"""Copies of a data directory as a crash at any write or sync would leave it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import lmdb

#: Calls that change names or sync; their first argument is a path or a file descriptor.
_CALLS = ("fsync", "rename", "replace", "unlink", "truncate", "rmdir")
_REMOVALS = ("replace", "unlink", "rmdir")


class Shot(NamedTuple):
    """A copy to be taken of a directory, ahead of one of the next writes and syncs in it."""

    path: Path
    copy: Path
    point: int
    #: The copy has the names of the latest sync of each directory.
    loses_names: bool
    #: Only deletions and replacements of files are counted: there are few, and each must come at the right time.
    counts_removals: bool


class Camera:
    """Counts the writes and syncs in one directory, and copies it ahead of the chosen one.

    A copy has either all names as they are, or those of the latest sync of each directory, as after a power failure.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = folder / "kept"
        self._kept.mkdir()
        #: By the inode of a directory: its names and their inodes, as they were synced.
        self._synced: dict[int, dict[str, int]] = {}
        self._armed: Shot | None = None
        self._on_photo: Callable[[], None] = lambda: None
        self._is_busy = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all stores that are opened until the end."""
        with mock.patch.object(lmdb, "open", self._open(lmdb.open)):
            calls: dict[str, Any] = {name: self._watched(name, getattr(os, name)) for name in _CALLS}
            with mock.patch.multiple(os, **calls):
                yield

    def arm(self, shot: Shot, taken: Callable[[], None] = lambda: None) -> None:
        """Take a copy ahead of one of the next writes and syncs, and call `taken`."""
        self._armed, self._on_photo = shot, taken

    def finish(self) -> None:
        """Take the copy now if there were fewer writes."""
        if self._armed is not None:
            self._take(self._armed)

    # ---- what is watched ----------------------------------------------------------------------------

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(target: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_busy:
                return call(target, *arguments, **named)
            path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target)
            self._point(path, is_removal=name in _REMOVALS)
            result = call(target, *arguments, **named)
            if name == "fsync" and path.is_dir() and path.is_relative_to(self._folder):
                self._is_busy = True
                self._note_names(path)
                self._is_busy = False
            return result

        return watched

    def _open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, **options: _WatchedFile(
            call(path, **options), lambda: self._point(Path(path), is_removal=False)
        )

    def _point(self, path: Path, *, is_removal: bool) -> None:
        shot = self._armed
        if shot is None or not path.is_relative_to(shot.path) or (shot.counts_removals and not is_removal):
            return
        self._armed = shot._replace(point=shot.point - 1)
        if shot.point <= 0:
            self._take(shot)

    # ---- copies ---------------------------------------------------------------------------------------

    def _take(self, shot: Shot) -> None:
        self._armed, copy = None, shot.copy
        self._is_busy = True
        try:
            if shot.loses_names:
                self._copy_synced(shot.path, copy)
            else:
                shutil.copytree(shot.path, copy, ignore=shutil.ignore_patterns("*-lock"))
            for folder in (copy, *filter(Path.is_dir, copy.rglob("*"))):  # a crash leaves what is on the disk
                self._note_names(folder)
        finally:
            self._is_busy = False
        self._on_photo()

    def _note_names(self, folder: Path) -> None:
        names: dict[str, int] = {}
        for entry in os.scandir(folder):
            if entry.name.endswith("-lock"):
                continue
            names[entry.name] = inode = entry.inode()
            kept = self._kept / str(inode)
            if entry.is_file() and not kept.exists():
                kept.hardlink_to(entry.path)  # also keeps the inode from being used again
        self._synced[folder.stat().st_ino] = names

    def _copy_synced(self, folder: Path, copy: Path) -> None:
        copy.mkdir()
        there = {entry.inode(): Path(entry.path) for entry in os.scandir(folder)}
        for name, inode in self._synced.get(folder.stat().st_ino, {}).items():
            kept = self._kept / str(inode)
            if kept.exists():
                shutil.copyfile(kept, copy / name)
            elif inode in there and stat.S_ISDIR(there[inode].stat().st_mode):
                self._copy_synced(there[inode], copy / name)


class _WatchedFile:
    """An LMDB environment whose write transactions are counted ahead of their commit."""

    def __init__(self, env: Any, point: Callable[[], None]) -> None:
        self._env, self._point = env, point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, *arguments: Any, **options: Any) -> Any:
        transaction = self._env.begin(*arguments, **options)
        return _Commit(transaction, self._point) if options.get("write") else transaction


class _Commit:
    def __init__(self, transaction: Any, point: Callable[[], None]) -> None:
        self._transaction, self._point = transaction, point

    def __enter__(self) -> Any:
        return self._transaction.__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._point()
        return self._transaction.__exit__(*error)
