"""The text of a rejection: the command in it helps."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq_cli.main import main
from minimq_common.security.access_document import AccessDocument, User, from_toml, to_toml
from minimq_common.security.access_policy import Policy, rejected
from minimq_common.security.access_rule import Need, need_of

ONE_WRITE = "spark-batch-9a4e1c1e-0000-0000-0000-000000000000"


def document_of(*rules: str, roles: tuple[str, ...] = ()) -> AccessDocument:
    return AccessDocument({"alice": User(rules=rules, roles=roles)}, {"readers": ("deny read topic pay*",)})


def needed(text: str) -> Need:
    return need_of(*text.split())


@pytest.mark.parametrize(
    ("what", "also"),
    [
        ("write topic orders-1", ""),
        ("describe topic orders-1", ""),
        ("read group g", ""),
        ("manage group g", ""),
        ("manage topic orders-1", ""),
        ("backup cluster", ""),
        (f"write transaction {ONE_WRITE}", "write transaction spark-batch-another"),
        ("read topic %RETRY%g", "read group g"),
    ],
)
def test_who_follows_the_advice_may_do_it(what: str, also: str, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(to_toml(document_of()))
    need = needed(what)
    [command] = re.findall(r"`minimq (.*?)`", rejected("alice", Policy(document_of()).decide("alice", need)))[:1]
    done = CliRunner().invoke(main, [*shlex.split(command), "--secrets", str(tmp_path)])
    assert done.exit_code == 0, done.output
    later = Policy(from_toml(file.read_bytes()))
    assert all(later.decide("alice", each).allowed for each in (need, needed(also or what)))
    assert not later.decide("alice", needed("write transaction other")).allowed


@pytest.mark.parametrize(
    ("document", "what", "text"),
    [
        (
            document_of("allow write topic orders*"),
            "describe topic payroll",
            "user alice has no right to topic payroll: an administrator can grant it with `minimq user allow alice "
            "--write payroll`, for sending, or `--read payroll`, for reading",
        ),
        (
            document_of("deny write topic ${user}-*", "allow write topic *"),
            "write topic alice-1",
            "user alice may not write topic alice-1, whatever else is allowed: the rule 'deny write topic ${user}-*' "
            "of user alice denies it; an administrator can remove it from access.toml",
        ),
        (
            document_of("allow read topic *", roles=("readers",)),
            "read topic payroll",
            "user alice may not read topic payroll, whatever else is allowed: the rule 'deny read topic pay*' of role "
            "readers denies it; an administrator can remove it from access.toml",
        ),
    ],
)
def test_a_rejection_names_the_right_or_the_rule_that_denies(document: AccessDocument, what: str, text: str) -> None:
    assert rejected("alice", Policy(document).decide("alice", needed(what))) == text
