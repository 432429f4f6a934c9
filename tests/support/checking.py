"""The findings of `minimq-broker check` as texts."""

from __future__ import annotations

from pathlib import Path

from minimq_broker.backup.check import check_directory


def findings_of(path: Path) -> list[str]:
    return [str(finding) for finding in check_directory(path).findings]
