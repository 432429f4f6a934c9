"""Charts: what is drawn, and up to which value."""

from __future__ import annotations

from minimq_console.charts import HEIGHT, WIDTH, Chart, scale_of
from support.cases import for_each


def chart(*values: float | None, slots: int = 360) -> Chart:
    """Return a chart of an hour that ends with these values."""
    return Chart("Lag", "messages", (*[None] * (slots - len(values)), *values))


@for_each(
    ("highest", "top"),
    [
        (0, 1),
        (0.3, 1),
        (1, 1),
        (1.1, 2),
        (3, 3),
        (7, 7),
        (10, 10),
        (11, 20),
        (100, 100),
        (124, 200),
        (2037, 2500),
        (9e9, 1e10),
    ],
)
def test_the_scale_ends_at_a_round_value(highest: float, top: float) -> None:
    assert scale_of(highest) == top


def test_lines_end_at_gaps_that_are_long_and_have_areas_down_to_zero() -> None:
    values = [4.0, 0.0, *[None] * 4, 5.0, 5.0, *[None] * 20, 1.0, 2.0, 3.0]
    [first, second] = chart(*values).lines
    assert first.points.startswith(f"0.0,{HEIGHT - 4 / 5 * HEIGHT:.1f} ")
    assert f",{HEIGHT:.1f} " in first.points
    assert len(first.points.split()) == 4
    assert second.area.split()[1:-1] == second.points.split()
    assert second.area.endswith(f" {WIDTH:.1f},{HEIGHT}")
