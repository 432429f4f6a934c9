"""Sessions by client and by group: what is of one user, and what a client has when it comes back."""

from __future__ import annotations

import pytest

from minimq_broker.groups.session_table import Session, SessionKey, SessionTable
from minimq_common.errors import GroupConflict

ALICE, BOB = SessionKey("alice", "g", "worker"), SessionKey("bob", "g", "worker")


def entered(table: SessionTable, key: SessionKey, run: int = 0) -> Session:
    session = Session(key, run)
    table.enter(session)
    return session


def test_an_id_is_of_each_user_and_in_a_group_of_the_first_one() -> None:
    table = SessionTable()
    alice, bob = entered(table, ALICE), entered(table, BOB)
    assert (table.find(ALICE), table.find(BOB), len(table)) == (alice, bob, 2)
    table.claim("g", alice)
    table.claim("h", bob)
    with pytest.raises(GroupConflict, match="client id 'worker' is in use by another client in group 'g'"):
        table.claim("g", bob)
    table.release("g", bob)  # which is not his
    assert (table.member("g", "worker"), table.member("h", "worker")) == (alice, bob)
    table.release("g", alice)
    table.claim("g", bob)
    assert (table.member("g", "worker"), alice.groups, bob.groups) == (bob, set(), {"g", "h"})


def test_a_client_that_comes_back_goes_on_with_its_groups() -> None:
    table = SessionTable()
    former = entered(table, ALICE)
    table.claim("g", former)
    later = entered(table, ALICE)
    assert (table.member("g", "worker"), later.groups) == (later, {"g"})
    table.remove(former)  # which is not there any more
    assert table.find(ALICE) is later
    table.remove(later)  # it is dead, and comes back before it has left its groups
    last = entered(table, ALICE)
    assert last.groups == set()
    table.hand_over(later, last)
    assert (table.member("g", "worker"), last.groups) == (last, {"g"})


@pytest.mark.parametrize(("run", "is_silent", "inherited"), [(1, False, {"g"}), (1, True, set()), (2, True, {"g"})])
def test_a_new_process_gets_new_leases_even_if_the_former_may_still_run(
    run: int, is_silent: bool, inherited: set[str]
) -> None:
    table = SessionTable()
    former = entered(table, ALICE, run=1)
    table.claim("g", former)
    former.is_silent = is_silent
    assert entered(table, ALICE, run).inherited == inherited
