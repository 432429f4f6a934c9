"""The entry with which a term begins; the first one in a log draws the identity of the log."""

from __future__ import annotations

import secrets

from minimq_broker.core.facts import TermBegun
from minimq_broker.core.state import State


def term_begun(term: int, state: State) -> TermBegun:
    """Return what is to be written at the begin of a term; the log of an older release gets its identity late."""
    return TermBegun(term) if state.log_id else TermBegun(term, secrets.token_hex(8))
