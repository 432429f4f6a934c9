from __future__ import annotations

from minimq_common.text_units import bytes_of, seconds_of
from support.cases import for_each


@for_each(
    ("text", "seconds"),
    [("3d", 259_200), ("1h30m", 5400), ("1h 30m", 5400), ("500ms", 0.5), ("1.5h", 5400), ("2w", 1_209_600), ("0s", 0)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@for_each("text", ["", "3", "d", "3 days", "-3d", "3dd", "1e9d", "3D", "3d4", "٣d", "9" * 400 + "d"])
def test_what_is_no_duration(text: str) -> None:
    assert seconds_of(text) is None


@for_each(
    ("text", "size"),
    [
        ("17", 17),
        ("17B", 17),
        ("64MiB", 64 << 20),
        ("10GB", 10**10),
        ("10 gb", 10**10),
        ("1.5KiB", 1536),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    assert bytes_of(text) == size


@for_each("text", ["", "MB", "-1", "1e3", "64 megabytes", "1M", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    assert bytes_of(text) is None
