from __future__ import annotations

import resource

import pytest

from minimq_common.serving.open_files import connections_within_limit


@pytest.mark.parametrize(
    ("limit", "wanted", "stored_files", "accepted"),
    [
        (resource.RLIM_INFINITY, 10_000, 10_000, 10_000),
        (1 << 20, 10_000, 40_000, 10_000),
        (4096, 10_000, 100, 4096 - 164),
        (4096, 100, 100, 100),
        (256, 10_000, 40_000, 128),
    ],
)
def test_connections_leave_descriptors_for_files(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: int,
    wanted: int,
    stored_files: int,
    accepted: int,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert connections_within_limit(wanted, stored_files) == accepted
    assert ("raise the limit" in caplog.text) is (accepted < wanted)
