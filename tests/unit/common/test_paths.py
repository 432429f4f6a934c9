"""Paths as users write them."""

from __future__ import annotations

import pwd
from collections.abc import Callable

import pytest

from minimq import ConsumerOptions, LocalCluster
from minimq.features.broadcasting.broadcasting import LocalOffsets
from minimq_common.errors import InvalidArgument
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile
from support.cases import for_each


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)  # as in a container that runs as a number
    with pytest.raises(InvalidArgument, match=r"~/.minimq: '~' is the home directory, which this user does not have"):
        LocalOffsets("~/.minimq", "g", "c")
    with pytest.raises(InvalidArgument, match="set HOME, or give an absolute path"):
        CredentialsFile(Credentials("~/ann.minimq"))


@for_each("path", ["data\r", "data\n", "da\x00ta", "data\x9f", '"data"', 'da"ta', "'data'"])
def test_a_path_with_control_characters_or_quotes_is_rejected(path: str) -> None:
    made: dict[str, Callable[[], object]] = {
        "data_dir": lambda: LocalCluster(data_dir=path),
        "broadcast_dir": lambda: ConsumerOptions(broadcast_dir=path),
        "credentials": lambda: Credentials(path),
    }
    for option, make in made.items():
        with pytest.raises(InvalidArgument, match=f"^{option} contains the character .*: a path must not contain"):
            make()
