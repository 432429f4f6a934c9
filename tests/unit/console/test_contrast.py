"""Colours of the console: whatever is read has a contrast of 4.5 to 1 at least, by day and by night."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import minimq_console

SHEET = (Path(minimq_console.__file__).parent / "static" / "console.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
)
#: Colours of text, and what they stand on.
TEXTS = ("text", "quiet", "link", "good", "bad", "warned")
BACKS = ("back", "raised", "bad-back", "warned-back")


def brightness(colour: str) -> float:
    """Return the relative luminance, as WCAG 2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_it_is_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_all_text_can_be_read(colours: dict[str, str]) -> None:
    found = {(text, back): contrast(colours[text], colours[back]) for text in TEXTS for back in BACKS}
    found["back", "link"] = contrast(colours["back"], colours["link"])  # of the button that does something
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_edges_of_fields_and_the_focus_can_be_seen(colours: dict[str, str]) -> None:
    found = {(line, back): contrast(colours[line], colours[back]) for line in ("edge", "focus") for back in BACKS}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 3} == {}


def test_both_schemes_have_the_same_variables_and_nothing_has_a_colour_of_its_own() -> None:
    assert LIGHT.keys() == DARK.keys()
    rules = re.sub(r":root \{.*?\}", "", SHEET, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(", rules) == []
    assert set(re.findall(r"var\(--([\w-]+)\)", rules)) == LIGHT.keys()
