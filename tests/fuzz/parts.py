"""The parts of `make fuzz`. A part is a function that plays hostile input and returns what it found, one text each."""

from __future__ import annotations

import importlib
from typing import NamedTuple


class Part(NamedTuple):
    """One kind of hostile input.

    Attributes:
        module: has a function `play(seed, amount, only)`, which returns the findings.
        amount: of what is played, in a long run.
        unit: of the amount.
    """

    module: str
    amount: int
    unit: str

    def play(self, seed: int, amount: int, only: str = "") -> list[str]:
        """Play it, and return what was found.

        Args:
            seed: repeats the choices of an earlier run.
            amount: how much is played.
            only: leave out what does not have this text in its name.
        """
        findings: list[str] = importlib.import_module(self.module).play(seed, amount, only)
        return findings


PARTS = {
    "decoders": Part("fuzz.decoders", 10_000_000, "inputs"),
    "files": Part("fuzz.files", 10_000, "cases"),
    "rpcs": Part("fuzz.rpcs", 1_000_000, "calls"),
}
