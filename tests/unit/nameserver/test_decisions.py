"""The file of the controller's decisions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq_common.errors import StoreError
from minimq_common.replicas.election import found
from minimq_common.replicas.replica_set import ReplicaSet
from minimq_nameserver.__main__ import main
from minimq_nameserver.controller import decisions
from minimq_nameserver.controller.decisions import DecisionFile
from support.reports import report


def record_of(number: int) -> ReplicaSet:
    record = found(report(broker_name=f"broker-{number:03d}"), 3.0)
    assert record is not None
    return record


def test_a_full_file_says_so_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "_MAX_BYTES", 1 << 16)
    file = DecisionFile(tmp_path)
    saved: list[ReplicaSet] = []

    def save_until_full() -> None:
        for number in range(1000):
            file.save(record_of(number))
            saved.append(record_of(number))

    with pytest.raises(StoreError, match=r"decisions\.json is full: .*move it away"):
        save_until_full()
    assert sorted(file.load(), key=lambda each: each.key) == sorted(saved, key=lambda each: each.key)
    file.close()


def test_check_verifies_a_directory_whose_name_server_is_stopped_and_changes_nothing(tmp_path: Path) -> None:
    def check(directory: Path = tmp_path) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["check", str(directory)])
        return done.exit_code, done.output

    with closing(DecisionFile(tmp_path)) as file:
        for number in range(3):
            file.save(record_of(number))
        assert check() == (
            1,
            f"error: {tmp_path} is in use by another controller: stop it first, or choose another directory\n",
        )
    path = tmp_path / "decisions.json"
    data = path.read_bytes()
    assert check() == (0, "clean: 3 replica sets\n")
    assert path.read_bytes() == data
    path.write_bytes(data.replace(b"broker-001", b"broker-009"))
    status, said = check()
    assert status == 1
    assert f"error: {path} cannot be read: " in said
    assert "move it away" not in said  # that is for a start
    (tmp_path / "other").mkdir()
    status, said = check(tmp_path / "other")
    assert (status, list((tmp_path / "other").iterdir())) == (1, [])
    assert "is not the directory of a controller (it has no file decisions.json)" in said


@pytest.mark.parametrize("harm", [b"", b"no JSON", b"00000000\n[]"])
def test_a_damaged_file_is_not_believed(tmp_path: Path, harm: bytes) -> None:
    (tmp_path / "decisions.json").write_bytes(harm)
    with pytest.raises(StoreError, match=r"decisions\.json cannot be read: .*move it away while the brokers run"):
        DecisionFile(tmp_path)
