"""The runner of `make fuzz`: slices, and where an interrupted run goes on."""

from __future__ import annotations

import pytest

from fuzz import __main__ as runner
from fuzz.parts import PARTS, Part

_played: list[tuple[int, int]] = []


def play(seed: int, amount: int, only: str, first: int) -> list[str]:
    """Play as a part does: number 250 is a finding."""
    _played.append((first, amount))
    return [f"{seed} {only}"] if 250 in range(first, first + amount) else []


@pytest.mark.parametrize(
    ("words", "played", "status"),
    [
        ((), [(0, 100), (100, 100), (200, 60)], 1),
        (("--first", "200"), [(200, 60)], 1),
        (("--first", "70", "--amount", "110"), [(70, 100), (170, 10)], 0),
    ],
)
def test_a_part_goes_on_at_the_number_that_is_given(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    played: list[tuple[int, int]],
    status: int,
) -> None:
    monkeypatch.setitem(PARTS, "own", Part(__name__, 260, "cases", 100))
    monkeypatch.setattr("sys.argv", ["fuzz", "own", "--seed", "7", "--only", "x", *words])
    _played.clear()
    assert runner.main() == status
    assert _played == played
    said = capsys.readouterr().out
    assert ("  7 x\n" in said) == bool(status)
    for first, _ in played[1:]:
        assert f"go on with --first {first}\n" in said


def test_a_number_belongs_to_one_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--first", "7"])
    with pytest.raises(SystemExit):
        runner.main()
    assert "--first needs the part that it is a number of" in capsys.readouterr().err
