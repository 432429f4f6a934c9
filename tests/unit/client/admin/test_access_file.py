"""Users and rules in a folder of secrets, and the commands that change them without a server."""

from __future__ import annotations

import json
import re
import stat
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from minimq import Credentials
from minimq.admin.access_folder import AccessFolder
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.certificate_signer import Signer
from minimq_cli.main import main
from minimq_common.security.access_document import AccessDocument, StoredKey, User, from_toml, to_toml
from minimq_common.security.access_policy import Policy, Principal, Rejection
from minimq_common.security.access_rule import need_of
from minimq_common.security.credentials_file import CredentialsFile, written
from minimq_common.security.server_secrets import ServerSecrets
from minimq_common.security.user_key import UserKey, parse_key

FOREVER_MS = 1 << 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CertificateAuthority(tmp_path / "secrets").init(["mq1"], ["mq1:9876"])
    return tmp_path / "secrets"


def run(*arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def policy(folder: Path) -> Policy:
    return Policy(from_toml((folder / "server" / "access.toml").read_bytes()))


def test_a_new_folder_has_an_admin_and_the_key_of_the_servers(folder: Path) -> None:
    key = CredentialsFile(Credentials(str(folder / "admin.minimq"))).trust().bearer
    assert isinstance(key, UserKey)
    assert policy(folder).of_key(key.hash, 0) == Principal("admin", key.id)
    shared = (folder / "server" / "cluster.key").read_text()
    assert parse_key(shared.strip()) != key
    for path in (folder / "server" / "access.toml", folder / "server" / "cluster.key", folder / "admin.minimq"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.text not in (folder / "server" / "access.toml").read_text()
    shown = run("secure", "describe", folder).output
    assert "admin" in shown
    assert not any(secret.split("_", 2)[2] in shown for secret in (key.text, shared.strip()))


def test_a_new_folder_takes_over_neither_modes_nor_links(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    (folder / "server").mkdir(parents=True)
    prepared = [folder / "admin.minimq", folder / "server" / "cluster.key", folder / "server" / "tls.key"]
    for path in prepared:
        path.touch()
        path.chmod(0o666)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    elsewhere.chmod(0o666)
    prepared.append(folder / "server" / "access.toml")
    prepared[-1].symlink_to(elsewhere)
    run("secure", "init", folder)
    assert [stat.S_IMODE(path.lstat().st_mode) for path in prepared] == [0o600] * 4
    assert not prepared[-1].is_symlink()
    assert stat.S_IMODE((folder / "server").stat().st_mode) == 0o700
    other = tmp_path / "other"
    other.mkdir()
    (other / "authority").symlink_to(folder)
    assert "is a link or belongs to another user" in run("secure", "init", other, status=2).output


def test_the_key_of_the_servers_is_replaced_line_by_line(folder: Path) -> None:
    file = folder / "server" / "cluster.key"
    (former,) = ServerSecrets(folder / "server", requires_certificates=False).keys()
    added = run("secure", "new-key").stdout
    with file.open("a") as opened:
        opened.write(added)
    both = ServerSecrets(folder / "server", requires_certificates=False)
    assert [key.text for key in both.keys()] == [former.text, added.strip()]  # noqa: SIM118 - no dict
    assert both.trust().bearer == former


def test_a_new_authority_and_new_certificates_keep_the_keys(folder: Path) -> None:
    before = CredentialsFile(Credentials(str(folder / "admin.minimq"))).trust().bearer
    secret = {name: (folder / "server" / name).read_bytes() for name in ("cluster.key", "access.toml")}
    for step in ("add", "use", "retire"):
        run("secure", "renew", folder, "--ca", step)
    run("secure", "renew", folder)
    run("secure", "issue", folder, "admin", "--force")
    assert CredentialsFile(Credentials(str(folder / "admin.minimq"))).trust().bearer == before
    assert {name: (folder / "server" / name).read_bytes() for name in secret} == secret


def test_a_user_is_added_with_credentials_that_open(folder: Path) -> None:
    text = run("user", "add", "alice", "--write", "orders*", "--group", "${user}-*", "--secrets", folder).stdout
    opened = CredentialsFile(Credentials.from_text(text))
    assert opened.nameservers == ("mq1:9876",)
    trust = opened.trust()
    assert isinstance(trust.bearer, UserKey)
    assert trust.pair is not None  # the key of the authority is here
    assert policy(folder).of_key(trust.bearer.hash, 0) == Principal("alice", trust.bearer.id)
    for question, status, answer in (
        ("write topic orders-1", 0, "yes: allow write topic orders* (user alice)"),
        ("read group alice-1", 0, "yes: allow read group ${user}-* (user alice)"),
        ("read topic orders-1", 1, "no: no rule allows to read topic orders-1"),
        ("access cluster", 1, "no: no rule allows to access cluster"),
    ):
        assert run("can", "alice", *question.split(), "--secrets", folder, status=status).stdout.strip() == answer
    unclear = run("can", "alice", "write", "topic", "--secrets", folder, status=2).stderr
    assert unclear == "error: 'write topic' is about a topic: give it a name, or * for all\n"
    said = json.loads(run("can", "bob", "read", "topic", "a", "--secrets", folder, "--output", "json", status=1).stdout)
    assert said == {"allowed": False, "reason": "there is no user bob"}
    again = run("user", "add", "alice", "--secrets", folder, status=2)
    assert "exists already" in again.stderr
    assert again.stdout == ""


def test_a_dry_run_tells_what_would_change_and_changes_nothing(folder: Path, tmp_path: Path) -> None:
    before, file = (folder / "server" / "access.toml").read_bytes(), tmp_path / "alice.minimq"
    said = run("user", "add", "alice", "--write", "orders*", "--to", file, "--dry-run", "--secrets", folder).stdout
    assert "dry run, nothing was changed:\nplanned: user alice added: keys " in said
    assert "rules allow write topic orders*" in said
    assert "nobody" in run("user", "delete", "nobody", "--dry-run", "--secrets", folder, status=2).stderr
    assert (folder / "server" / "access.toml").read_bytes() == before
    assert not file.exists()


def test_the_folder_of_a_server_alone_is_enough(folder: Path, tmp_path: Path) -> None:
    (folder / "authority").rename(tmp_path / "safe")
    alice = tmp_path / "alice.minimq"
    for place, name in ((folder, "alice"), (folder / "server", "bob")):
        to = alice.with_stem(name)
        assert run("-s", "mq2:1", "user", "add", name, "--secrets", place, "--to", to).stdout.startswith(
            f"{to}: the credentials of user {name}"
        )
        opened = CredentialsFile(Credentials(str(to)))
        assert opened.nameservers == ("mq2:1",)
        assert opened.trust().pair is None
        assert stat.S_IMODE(to.stat().st_mode) == 0o600
    for to, reason in (
        (alice, "the file already exists; give another name, or remove"),
        (tmp_path / "none" / "carol.minimq", "No such file or directory"),
        (alice / "carol.minimq", "Not a directory"),
    ):
        for dry_run in ((), ("--dry-run",)):
            rejected = run("user", "add", "carol", "--secrets", folder, "--to", to, *dry_run, status=2).stderr
            assert f"cannot write {to}: {reason}" in rejected
    assert "carol" not in policy(folder).document.users
    assert "has no access.toml" in run("user", "list", "--secrets", tmp_path, status=2).stderr


def test_rights_come_and_go(folder: Path) -> None:
    run("user", "add", "alice", "--secrets", folder, "--write", "a", "--right", "backup cluster")

    def rules() -> tuple[str, ...]:
        return policy(folder).document.users["alice"].rules

    run("user", "allow", "alice", "--read", "b*", "--transaction", "t", "--role", "admin", "--secrets", folder)
    kept = ("allow write topic a", "allow backup cluster", "allow read topic b*", "allow write transaction t")
    assert rules() == kept
    assert policy(folder).document.users["alice"].roles == ("admin",)
    run("user", "allow", "alice", "--read", "b*", "--role", "admin", "--delete", "--secrets", folder)
    assert rules() == ("allow write topic a", "allow backup cluster", "allow write transaction t")
    run("user", "deny", "alice", "--write", "a", "--secrets", folder)
    denied = ("allow write topic a", "allow backup cluster", "allow write transaction t", "deny write topic a")
    assert rules() == denied
    assert not policy(folder).decide("alice", need_of("write", "topic", "a")).allowed
    run("user", "deny", "alice", "--write", "a", "--delete", "--secrets", folder)
    assert rules() == denied[:-1]
    run("user", "deny", "alice", "--write", "a", "--secrets", folder)
    run("user", "allow", "alice", "--write", "a", "--secrets", folder)
    assert rules() == denied[:-1]
    assert policy(folder).decide("alice", need_of("write", "topic", "a")).allowed
    before = (folder / "server" / "access.toml").read_bytes()
    for wrong, reason in (
        (("allow", "alice"), "nothing to change"),
        (("allow", "bob", "--read", "a"), "there is no user bob"),
        (("allow", "alice", "--read", "a*b"), "has a name that nothing can have"),
        (("allow", "alice", "--role", "boss"), "has the role 'boss', which the document does not have"),
        (("allow", "alice", "--read", "b*", "--delete"), "does not have 'allow read topic b*'"),
        (("deny", "alice", "--right", "fly topic a"), "'fly', which is no verb of a topic"),
    ):
        assert reason in run("user", *wrong, "--secrets", folder, status=2).stderr
    assert (folder / "server" / "access.toml").read_bytes() == before


def test_a_key_is_rotated_without_a_gap_or_at_once(folder: Path) -> None:
    def of(text: str) -> Principal | Rejection:
        key = CredentialsFile(Credentials.from_text(text)).trust().bearer
        assert isinstance(key, UserKey)
        return policy(folder).of_key(key.hash, FOREVER_MS)

    first = run("user", "add", "alice", "--secrets", folder).stdout
    second = run("user", "rotate", "alice", "--secrets", folder).stdout
    assert isinstance(of(first), Principal)
    assert isinstance(of(second), Principal)
    assert "2 keys already" in run("user", "rotate", "alice", "--secrets", folder, status=2).stderr
    run("user", "delete-old-keys", "alice", "--secrets", folder)
    assert (of(first), isinstance(of(second), Principal)) == (Rejection.UNKNOWN, True)
    assert "no former key" in run("user", "delete-old-keys", "alice", "--secrets", folder, status=2).stderr
    third = run("user", "rotate", "alice", "--delete-old", "--lifetime", "90d", "--secrets", folder).stdout
    assert (of(second), of(third)) == (Rejection.UNKNOWN, Rejection.EXPIRED)
    (row,) = (
        row
        for row in json.loads(run("user", "list", "--secrets", folder, "--output", "json").stdout)
        if row["user"] == "alice"
    )
    assert row["keys"][0]["expires_at"] is not None
    for lifetime, said in (("9", "give a time such as 30s"), ("0s", "--lifetime is 0: it must be above 0")):
        assert said in run("user", "rotate", "alice", "--lifetime", lifetime, "--secrets", folder, status=2).stderr


def test_the_question_before_keys_are_revoked_is_no_part_of_the_credentials(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("user", "add", "alice", "--secrets", folder)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    rotate = ["user", "rotate", "alice", "--delete-old", "--secrets", str(folder)]
    done = CliRunner().invoke(main, rotate, input="y\n")
    assert "Revoke the former keys of user alice? [y/N]" in done.stderr
    assert "Revoke" not in done.stdout
    assert done.stdout.startswith("# Credentials of alice")


def test_the_file_in_use_is_replaced_by_a_rotation(folder: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "alice.minimq", tmp_path / "link"
    run("user", "add", "alice", "--to", file, "--secrets", folder)
    first = CredentialsFile(Credentials(str(file)))
    former = first.trust().bearer  # which is another one once it has looked again
    link.symlink_to(file)
    file.chmod(0o640)
    run("user", "rotate", "alice", "--to", link, "--secrets", folder)
    second = CredentialsFile(Credentials(str(file)))
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert former != second.trust().bearer == first.trust(at_once=True).bearer
    assert second.nameservers == first.nameservers
    before = file.read_bytes()
    # The third key is rejected, so the file stays.
    assert "2 keys already" in run("user", "rotate", "alice", "--to", file, "--secrets", folder, status=2).stderr
    run("user", "add", "bob", "--secrets", folder)
    (tmp_path / "notes").write_text("mine")
    for name, to, reason in (
        ("bob", file, "does not hold a valid key of user bob"),
        ("bob", tmp_path / "notes", "is no credentials file"),
        ("nobody", file, "there is no user nobody"),
    ):
        for dry_run in ((), ("--dry-run",)):
            rejected = run("user", "rotate", name, "--to", to, "--secrets", folder, *dry_run, status=2).stderr
            assert reason in rejected
    assert file.read_bytes() == before
    assert (tmp_path / "notes").read_text() == "mine"
    run("user", "rotate", "bob", "--to", tmp_path / "bob.minimq", "--secrets", folder)
    assert sorted(path.name for path in tmp_path.iterdir() if path != folder) == [
        "alice.minimq",
        "bob.minimq",
        "link",
        "notes",
    ]


def test_a_client_certificate_stays_in_a_file_that_is_replaced(folder: Path, tmp_path: Path) -> None:
    (folder / "authority").rename(tmp_path / "safe")  # which would sign another one
    run("user", "add", "alice", "--to", tmp_path / "key", "--secrets", folder)
    former = CredentialsFile(Credentials(str(tmp_path / "key")))
    pair = Signer.new().sign_user("alice")
    file = tmp_path / "alice.minimq"
    file.write_text(written(former.nameservers, replace(former.trust(), pair=pair), "Mine."))
    run("user", "rotate", "alice", "--to", file, "--secrets", folder)
    later = CredentialsFile(Credentials(str(file))).trust()
    assert later.pair is not None
    assert later.pair.certificate.strip() == pair.certificate.strip()
    assert later.bearer != former.trust().bearer


def test_a_key_that_has_expired_is_shown_as_such_and_its_user_may_do_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("user", "add", "alice", "--read", "orders", "--lifetime", "1h", "--secrets", folder)
    asked = ("can", "alice", "read", "topic", "orders", "--secrets", folder)

    def row() -> dict[str, Any]:
        rows = json.loads(run("user", "list", "--secrets", folder, "--output", "json").stdout)
        return next(row for row in rows if row["user"] == "alice")

    assert (row()["state"], row()["keys"][0]["expired"]) == ("enabled", False)
    assert run(*asked).stdout.startswith("yes: ")
    assert "}  # until 20" in run("access", "describe", "--secrets", folder).stdout
    later = time.time_ns() + 3_600 * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    assert (row()["state"], row()["keys"][0]["expired"]) == ("expired", True)
    assert re.search(r"^alice +expired +[a-z2-7]{8} expired 20", run("user", "list", "--secrets", folder).stdout, re.M)
    assert "}  # expired 20" in run("access", "describe", "--secrets", folder).stdout
    assert run(*asked, status=1).stdout.startswith("no: key expired: `minimq user rotate alice --delete-old`")
    run("user", "rotate", "alice", "--delete-old", "--secrets", folder)
    assert run(*asked).stdout.startswith("yes: ")


def test_a_rule_that_would_decide_nothing_is_rejected_with_the_one_to_write(folder: Path) -> None:
    run("user", "add", "alice", "--group", "billing", "--secrets", folder)
    for given, instead in (
        (("--read", "%DLQ%billing"), "'deny read group billing'"),
        (("--write", "%RETRY%billing"), "'deny read group billing'"),
    ):
        rejected = run("user", "deny", "alice", *given, "--secrets", folder, status=2).output
        assert "decides nothing" in rejected
        assert instead in rejected
    assert policy(folder).document.users["alice"].rules == ("allow read group billing",)


def test_a_user_is_kept_out_and_removed(folder: Path) -> None:
    run("user", "add", "alice", "--read", "a", "--secrets", folder)
    run("user", "disable", "alice", "--secrets", folder)
    assert (
        "no: user alice is disabled" in run("can", "alice", "read", "topic", "a", "--secrets", folder, status=1).stdout
    )
    run("user", "enable", "alice", "--secrets", folder)
    run("can", "alice", "read", "topic", "a", "--secrets", folder)
    run("user", "delete", "alice", "--secrets", folder)
    assert list(policy(folder).document.users) == ["admin"]


@pytest.mark.parametrize("command", ["delete", "disable"])
def test_the_last_one_who_may_change_users_stays(command: str, folder: Path) -> None:
    assert "no user would be left" in run("user", command, "admin", "--secrets", folder, status=2).stderr
    run("user", "add", "root", "--right", "access cluster", "--secrets", folder)
    run("user", command, "admin", "--secrets", folder)


@pytest.mark.parametrize("name", ["", "\N{LATIN SMALL LETTER E WITH ACUTE}", "a b", "x" * 400])
def test_a_name_that_no_user_can_have_is_rejected(name: str, folder: Path) -> None:
    for command, said in (("add", "is no name for a user"), ("rotate", "there is no user")):
        assert said in run("user", command, name, "--secrets", folder, status=2).stderr
    assert "is no name" in run("secure", "issue", folder, name, status=2).stderr


def test_what_takes_something_away_asks_on_a_terminal(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, stored = tmp_path / "access.toml", folder / "server" / "access.toml"
    file.write_text(run("access", "describe", "--secrets", folder).stdout + "[roles]\nreaders = []\n")
    for command in (["user", "add"], ["user", "rotate"]):
        run(*command, "alice", "--secrets", folder)
    before = stored.read_bytes()
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    for command in (
        ["access", "apply", str(file)],
        ["user", "delete-old-keys", "alice"],
        ["user", "delete", "alice"],
        ["user", "rotate", "alice", "--delete-old"],
    ):
        declined = CliRunner().invoke(main, [*command, "--secrets", str(folder)], input="n\n")
        assert (declined.exit_code, "? [y/N]" in declined.output) == (1, True), command
        assert stored.read_bytes() == before, command


def test_changes_at_once_are_all_made(folder: Path) -> None:
    def add(number: int) -> None:
        AccessFolder(folder).add_rules("admin", [f"allow read topic t{number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    found = policy(folder).document
    assert len(found.users["admin"].rules) == 16


def test_what_is_written_is_read_again() -> None:
    document = AccessDocument(
        {
            "a.b": User({"abcdefgh": StoredKey("0" * 64, 7, 8)}, ("admin", "r"), ("allow read topic ${user}-*",)),
            "gone": User(disabled=True),
        },
        {"r": (), "s.t": ("deny read topic a", "allow read topic *")},
    )
    text = to_toml(document)
    assert from_toml(text.encode()) == document
    assert list(tomllib.loads(text)) == ["roles", "users"]
