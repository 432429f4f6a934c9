"""Users, rules and keys: what a document says, who decides, and that all servers come to the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, User, from_toml
from minimq_common.security.access_policy import Policy, Principal, Rejection
from minimq_common.security.access_rule import VERBS, Need, Resource, Rule, Verb, parse_rule
from minimq_common.security.user_key import hash_of, new_key, parse_key
from support.cases import for_each

KEY = new_key(bytes(range(37)))
ANSWER_MS = 1_000

TOML = f"""
[roles]
readers = ["allow read topic orders*", "deny read topic orders-secret"]
[users.alice]
roles = ["readers"]
rules = ["allow write topic ${{user}}-*", "allow read group billing", "allow backup cluster"]
[users.alice.keys.{KEY.id}]
hash = "{KEY.hash}"
expires_ms = {ANSWER_MS}
[users.root]
roles = ["admin"]
[users.gone]
disabled = true
roles = ["admin"]
"""

DOCUMENT = from_toml(TOML.encode())
POLICY = Policy(DOCUMENT)


def need(text: str) -> Need:
    verb, resource, *name = text.split()
    return Need(Verb(verb), Resource(resource), *name)


@for_each(
    ("user", "what", "reason"),
    [
        ("alice", "read topic orders-1", "allow read topic orders* (role readers)"),
        ("alice", "describe topic orders-1", "allow read topic orders* (role readers)"),
        ("alice", "write topic alice-1", "allow write topic ${user}-* (user alice)"),
        ("alice", "read topic %RETRY%billing", "allow read group billing (user alice)"),
        ("alice", "write topic %DLQ%billing", "allow read group billing (user alice)"),
        ("alice", "backup cluster", "allow backup cluster (user alice)"),
        ("alice", "describe cluster", "allow backup cluster (user alice)"),
        ("root", "manage cluster", "role admin may do everything"),
        ("root", "manage topic %RETRY%g", "role admin may do everything"),
    ],
)
def test_what_is_allowed_names_its_rule(user: str, what: str, reason: str) -> None:
    decision = POLICY.decide(user, need(what))
    assert (decision.allowed, decision.reason) == (True, reason)


@for_each(
    ("user", "what", "reason"),
    [
        ("alice", "read topic orders-secret", "deny read topic orders-secret (role readers)"),
        ("alice", "write topic orders-1", "no rule allows to write topic orders-1"),
        ("alice", "write topic bob-1", "no rule allows to write topic bob-1"),
        ("alice", "read topic %RETRY%other", "no rule allows to read group other"),
        ("alice", "manage topic %RETRY%billing", "no rule allows to manage group billing"),
        ("alice", "manage cluster", "no rule allows to manage cluster"),
        ("gone", "read topic orders-1", "no rule allows to read topic orders-1"),
        ("nobody", "read topic orders-1", "no rule allows to read topic orders-1"),
    ],
)
def test_what_is_rejected_names_its_rule_or_that_there_is_none(user: str, what: str, reason: str) -> None:
    decision = POLICY.decide(user, need(what))
    assert (decision.allowed, decision.reason) == (False, reason)


def test_a_star_stands_for_no_name_of_minimq() -> None:
    everything = Policy(AccessDocument({"u": User(rules=("allow read topic *", "allow read group *"))}))
    assert everything.decide("u", need("read topic orders")).allowed
    assert not everything.decide("u", need("read topic %OTHER%x")).allowed
    assert everything.decide("u", need("read topic %RETRY%g")).rule == parse_rule("allow read group *")
    assert not everything.decide("u", need("read topic %RETRY%a%b")).allowed


NAMES = st.sampled_from(["a", "ab", "b", "u", "u-1", "%RETRY%a", "a%"])
RULES = st.builds(
    lambda allows, pair, pattern: Rule(allows, pair[1], pair[0], "" if pair[0] is Resource.CLUSTER else pattern),
    st.booleans(),
    st.sampled_from([(resource, verb) for resource, verbs in VERBS.items() for verb in verbs]),
    st.sampled_from(["*", "a", "a*", "ab", "${user}", "${user}-*", "b*"]),
)


@given(st.lists(RULES, max_size=5), st.lists(RULES, max_size=5), st.sampled_from(list(VERBS)), st.data())
def test_decisions_are_those_of_a_plain_reading(own: list[Rule], role: list[Rule], kind: Resource, data: Any) -> None:
    asked = Need(data.draw(st.sampled_from(VERBS[kind])), kind, "" if kind is Resource.CLUSTER else data.draw(NAMES))
    document = AccessDocument({"u": User(roles=("r",), rules=tuple(map(str, own)))}, {"r": tuple(map(str, role))})

    wanted, name = asked, asked.name
    if kind is Resource.TOPIC and name.startswith("%RETRY%"):
        name = name.removeprefix("%RETRY%")
        wanted = Need(Verb.READ if asked.verb is Verb.WRITE else asked.verb, Resource.GROUP, name)

    def about(rule: Rule) -> bool:
        pattern = rule.pattern.replace("${user}", "u")
        if rule.resource is not wanted.resource:
            return False
        if pattern.endswith("*"):
            return "%" not in name and name[: len(pattern) - 1] == pattern[:-1]
        return name == pattern

    denied = any(not rule.allows and rule.verb is wanted.verb and about(rule) for rule in (*own, *role))
    allowed = any(
        rule.allows and (rule.verb is wanted.verb or wanted.verb is Verb.DESCRIBE) and about(rule)
        for rule in (*own, *role)
    )
    decision = Policy(document).decide("u", asked)
    assert decision.allowed == (allowed and not denied)
    assert (decision.rule is None) == (not allowed and not denied)


@given(RULES)
def test_rules_are_read_as_they_are_written(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@for_each(
    ("text", "said"),
    [
        ("", "write allow or deny"),
        ("permit read topic a", "write allow or deny"),
        ("allow read topic a b", "write allow or deny"),
        ("allow read queue a", "use one of: topic, group, transaction, cluster"),
        ("allow write group a", "'write', which is no verb of a group; use one of: read, manage, describe"),
        ("allow read topic", "give it a name"),
        ("allow manage cluster x", "give it no name"),
        ("allow read topic a*b", "at the end only"),
        ("allow read topic **", "at the end only"),
        (f"allow read topic {'a' * 256}", "at the end only"),
        ("allow read topic ä", "at the end only"),
    ],
)
def test_what_is_no_rule_is_rejected_with_the_remedy(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_rule(text)
    assert said in raised.value.message


# ---- Keys -----------------------------------------------------------------------------------------


def test_a_key_is_known_by_its_hash_until_it_expires() -> None:
    assert POLICY.of_key(hash_of(KEY.text), ANSWER_MS - 1) == Principal("alice", ANSWER_MS)
    assert POLICY.of_key(KEY.hash, ANSWER_MS) is Rejection.EXPIRED
    assert POLICY.of_key(new_key(bytes(37)).hash, 0) is Rejection.UNKNOWN


@given(st.binary(min_size=37, max_size=37))
def test_a_key_is_read_as_it_was_made(random: bytes) -> None:
    made = new_key(random)
    assert parse_key(made.text) == made
    assert made.text not in repr(made)


@given(st.integers(0, len(KEY.text) - 1), st.sampled_from("abcXYZ019_-"))
def test_a_mistyped_key_is_rejected_unseen(place: int, letter: str) -> None:
    text = KEY.text[:place] + letter + KEY.text[place + 1 :]
    if text != KEY.text:
        with pytest.raises(InvalidArgument) as raised:
            parse_key(text)
        assert text[12:] not in raised.value.message
    with pytest.raises(InvalidArgument):
        parse_key(KEY.text[:place])
    with pytest.raises(InvalidArgument):
        new_key(bytes(place % 37))


# ---- The document ---------------------------------------------------------------------------------


@for_each(
    ("text", "said"),
    [
        ("other = 2", "other"),
        ("[users.alice]\nroles = ['nobody']", "the role 'nobody'"),
        ("[users.alice]\nrules = ['allow all']", "write allow or deny"),
        ("[roles]\nadmin = []", "already exists"),
        ("[users.'a b']", "'a b' is not a valid name for a user: use letters"),
        ("[users.alice.keys.abcdefgh]\nhash = 'mq_secret'", "an invalid key"),
        (TOML + f"[users.bob.keys.{KEY.id}]\nhash = '{KEY.hash}'", "that another user has"),
        ("", "there is no user"),
        ("users = 1", "Expected `object`"),
        ("[", "cannot be read"),
    ],
)
def test_what_is_no_document_is_rejected(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        from_toml(text.encode())
    assert said in raised.value.message
