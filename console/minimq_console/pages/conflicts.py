"""Brokers that claim the place of another."""

from __future__ import annotations

from minimq.routes.conflict_report import ConflictReport
from minimq_console.page import Page, PageData, Visit


class ConflictsPage(PageData, frozen=True, kw_only=True):
    """Brokers that name servers refused or replaced lately."""

    conflicts: tuple[ConflictReport, ...]


def gather(visit: Visit) -> ConflictsPage:
    """Return what the name servers report."""
    found = visit.ask("the conflicts", visit.observer.admin.conflicts).required()
    return ConflictsPage(conflicts=tuple(found), missing=visit.missing)


PAGE = Page(path="/conflicts", template="conflicts.html", gather=gather, title="Conflicts", label="Conflicts")
