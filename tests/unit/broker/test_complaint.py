"""What is wrong is said once."""

from __future__ import annotations

from minimq_broker.core.complaint import Complaint


def test_what_goes_on_is_said_once_and_what_changes_or_comes_again_is_said() -> None:
    complaint = Complaint()
    said = [complaint.is_new(kind) for kind in ("full", "full", "gone", "gone", "full")]
    assert said == [True, False, True, False, True]
    complaint.over()
    assert complaint.is_new("full")
    assert not complaint.is_new("full")
    complaint.over()
    complaint.over()
    assert complaint.is_new("gone")
