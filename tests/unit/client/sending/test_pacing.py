"""Pieces of large requests: small on a slow connection, whole requests on a fast one."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.pacing import Pacing

MANY = 64 << 20


def play(bytes_per_s: float, round_trip_s: float, total: int) -> tuple[Pacing, float, float]:
    """Send bytes over a line; returns the pacing, the seconds that it took, and the longest time without progress."""
    pacing, under_way = Pacing(), deque[tuple[int, float, float]]()
    now = line_free_at = moved_at = longest = 0.0
    while total > 0 or under_way:
        while total > 0 and not pacing.is_full:
            size = min(pacing.piece_bytes, total)
            total -= size
            pacing.sent(size)
            line_free_at = max(line_free_at, now) + size / bytes_per_s
            under_way.append((size, now, line_free_at + round_trip_s))
        size, sent_at, now = under_way.popleft()
        pacing.acknowledged(size, now - sent_at, now)
        longest, moved_at = max(longest, now - moved_at), now
    return pacing, now, longest


@given(st.floats(40 << 10, 1 << 20), st.floats(0.001, 0.1))
def test_a_slow_connection_shows_progress_and_is_never_idle(bytes_per_s: float, round_trip_s: float) -> None:
    total = 8 << 20
    _, took_s, longest_s = play(bytes_per_s, round_trip_s, total)
    assert longest_s < 0.9  # less than the shortest timeout of a try with the default options
    assert took_s < 1.5 * total / bytes_per_s + 2


@given(st.floats(100 << 20, 10 << 30), st.floats(0.0001, 0.2))
def test_a_fast_connection_carries_whole_requests(bytes_per_s: float, round_trip_s: float) -> None:
    pacing, _, _ = play(bytes_per_s, round_trip_s, MANY)
    assert pacing.piece_bytes >= 1 << 20
