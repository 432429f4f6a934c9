"""Paths as users write them."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from minimq.receiving.broadcasting import LocalOffsets
from minimq_common.errors import InvalidArgument, StoreError
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile
from minimq_common.words import expanded


def test_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert expanded("~/offsets") == Path("/home/ann/offsets")
    assert expanded(Path("/var/~")) == Path("/var/~")


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)  # as in a container that runs as a number
    with pytest.raises(InvalidArgument, match=r"~/.minimq: '~' is the home directory, which this user does not have"):
        LocalOffsets("~/.minimq", "g", "c")
    with pytest.raises(InvalidArgument, match="set HOME, or give an absolute path"):
        CredentialsFile(Credentials("~/ann.minimq"))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(StoreError, match=r"Not a directory: give a writable folder as offsets_dir$"):
        LocalOffsets(tmp_path / "home" / ".minimq", "g", "c")
