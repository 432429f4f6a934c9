"""Where checksums are slow, the log says so once, and what to do."""

from __future__ import annotations

import logging

import google_crc32c
import pytest

from minimq import Cluster
from minimq_common.batch import header


@pytest.mark.parametrize(("implementation", "lines"), [("python", 1), ("c", 0)])
def test_slow_checksums_are_told_once(
    implementation: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(google_crc32c, "implementation", implementation)
    monkeypatch.setattr(header, "_told", set())
    for _ in range(3):
        Cluster("127.0.0.1:1").close()
        header.warn_of_slow_checksums(logging.getLogger("minimq_common.serving.daemon"))
    told = [message for message in caplog.messages if "checksums are computed in pure Python" in message]
    assert len(told) == lines
    assert all("pip download" in message for message in told)
