"""The text of a rejection: the command in it helps, whatever it is that rejects."""

from __future__ import annotations

import re
import shlex

import pytest

from minimq.admin.users import GRANTS, Rehearsal
from minimq_common.security.access_document import AccessDocument, User
from minimq_common.security.access_policy import Policy, rejected
from minimq_common.security.access_rule import Need, Resource, Verb, parse_rule
from support.cases import for_each

ONE_WRITE = "spark-batch-9a4e1c1e-0000-0000-0000-000000000000"


def document_of(*rules: str) -> AccessDocument:
    return AccessDocument({"alice": User(rules=rules)}, {"readers": ("deny read topic pay*",)})


def need_of(text: str) -> Need:
    verb, resource, *name = text.split()
    return Need(Verb(verb), Resource(resource), *name)


def follow(document: AccessDocument, text: str) -> AccessDocument:
    """Return a document after the command that a text advises."""
    command = re.findall(r"`(.*?)`", text)[0]
    _, _, effect, name, *options = shlex.split(command)
    removes = "--delete" in options
    [option, given] = [each for each in options if each != "--delete"]
    if option == "--role":
        return Rehearsal(document).delete_rules(name, (), [given])
    right = given if option == "--right" else f"{GRANTS[option.removeprefix('--')][0]} {given}"
    return Rehearsal(document).change_rights(name, [right], effect=effect, delete=removes)


@for_each(
    ("what", "rules"),
    [
        ("write topic orders-1", ()),
        ("describe topic orders-1", ()),
        ("read group g", ()),
        ("manage group g", ()),
        ("backup cluster", ()),
        ("access cluster", ()),
        (f"write transaction {ONE_WRITE}", ()),
        ("read topic %RETRY%g", ()),
        ("write topic orders-1", ("deny write topic orders*",)),
        ("write topic alice-1", ("deny write topic ${user}-*", "allow write topic *")),
        ("describe topic orders-1", ("deny describe topic orders*", "allow read topic *")),
        ("manage cluster", ("deny manage cluster", "allow manage cluster")),
        ("write topic orders-1", ("deny write topic orders-1", "deny write topic *")),
    ],
)
def test_who_follows_the_advice_as_often_as_it_is_given_may_do_it(what: str, rules: tuple[str, ...]) -> None:
    document, need = document_of(*rules), need_of(what)
    for _ in range(len(rules) + 1):
        decision = Policy(document).decide("alice", need)
        if not decision.allowed:
            document = follow(document, rejected("alice", decision))
    assert Policy(document).decide("alice", need).allowed


def test_the_advice_for_a_name_that_is_used_once_is_about_all_such_names() -> None:
    denied = Policy(document_of()).decide("alice", need_of(f"write transaction {ONE_WRITE}"))
    document = follow(document_of(), rejected("alice", denied))
    assert Policy(document).decide("alice", need_of("write transaction spark-batch-another")).allowed
    assert not Policy(document).decide("alice", need_of("write transaction other")).allowed


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "describe topic payroll",
            "user alice has no right to topic payroll: an administrator can grant it with `minimq user allow alice "
            "--write payroll`, for sending, or `--read payroll`, for reading",
        ),
        (
            "access cluster",
            "user alice may not see or change users and rules: only administrators may, and `minimq user allow alice "
            "--right 'access cluster'` makes one",
        ),
    ],
)
def test_a_rejection_says_what_was_wanted(what: str, said: str) -> None:
    assert rejected("alice", Policy(document_of("allow write topic orders*")).decide("alice", need_of(what))) == said


def test_a_rule_of_a_role_is_named_with_the_role() -> None:
    document = Rehearsal(document_of("allow read topic *")).add_rules("alice", (), ["readers"])
    denied = Policy(document).decide("alice", need_of("read topic payroll"))
    text = rejected("alice", denied)
    assert "the rule 'deny read topic pay*' of role readers denies it" in text
    assert Policy(follow(document, text)).decide("alice", need_of("read topic payroll")).allowed


@for_each(
    ("denied", "given", "is_overridden"),
    [
        ("deny write topic orders*", "allow write topic orders-1", True),
        ("deny write topic orders*", "allow write topic orders-*", True),
        ("deny write topic ${user}-*", "allow write topic alice-1", True),
        ("deny write topic orders-1", "allow write topic orders*", False),  # all others are allowed
        ("deny read topic orders*", "allow write topic orders-1", False),
        ("deny write topic orders*", "allow write topic bills", False),
        ("deny manage cluster", "allow manage cluster", True),
    ],
)
def test_a_rule_that_allows_nothing_is_found(denied: str, given: str, is_overridden: bool) -> None:
    policy = Policy(document_of(denied))
    assert bool([*policy.overridden("alice", [parse_rule(given)])]) is is_overridden
