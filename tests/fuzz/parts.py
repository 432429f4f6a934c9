"""The parts of `make fuzz`. A part is a function that plays hostile input and returns what it found, one text each."""

from __future__ import annotations

import importlib
from typing import NamedTuple


class Part(NamedTuple):
    """One kind of hostile input.

    Attributes:
        module: has a function `play(seed, amount, only, first)`, which returns the findings.
        amount: of what is played, in a long run.
        unit: of the amount.
        slice: so much is played at a time; a run that was interrupted goes on behind the last one.
    """

    module: str
    amount: int
    unit: str
    slice: int

    def play(self, seed: int, amount: int, only: str = "", first: int = 0) -> list[str]:
        """Play it, and return what was found.

        Args:
            seed: repeats the choices of an earlier run.
            amount: how much is played.
            only: leave out what does not have this text in its name.
            first: the number to begin at: what has a lower one was played before.
        """
        findings: list[str] = importlib.import_module(self.module).play(seed, amount, only, first)
        return findings


PARTS = {
    "decoders": Part("fuzz.decoders", 10_000_000, "inputs", 500_000),
    "files": Part("fuzz.files", 10_000, "cases", 500),
    "rpcs": Part("fuzz.rpcs", 1_000_000, "calls", 1_000_000),
}
