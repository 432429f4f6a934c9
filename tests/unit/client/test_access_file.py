"""Users and rules in a folder of secrets, and the commands that change them."""

from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minimq import Credentials
from minimq.local.access_file import AccessFile
from minimq.local.certificate_authority import CertificateAuthority
from minimq.local.certificate_signer import Signer
from minimq_cli.main import main
from minimq_common.security.access_document import AccessDocument, StoredKey, User, from_toml, to_toml
from minimq_common.security.access_policy import Policy, Principal, Rejection
from minimq_common.security.credentials_file import CredentialsFile, written
from minimq_common.security.server_secrets import ServerSecrets
from minimq_common.security.user_key import UserKey, parse_key
from support.key_search import secrets_in

FOREVER_MS = 1 << 50


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands use by default."""
    monkeypatch.chdir(tmp_path)
    CertificateAuthority(tmp_path / "secrets").init(["mq1"], ["mq1:9876"])
    return tmp_path / "secrets"


def run(*arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def policy(folder: Path) -> Policy:
    return Policy(from_toml((folder / "server" / "access.toml").read_bytes()))


def key_of(text: str) -> UserKey:
    key = CredentialsFile(Credentials.from_text(text)).trust().bearer
    assert isinstance(key, UserKey)
    return key


def found(folder: Path, text: str) -> Principal | Rejection:
    return policy(folder).of_key(key_of(text).hash, FOREVER_MS)


def test_a_new_folder_has_an_admin_and_the_key_of_the_servers(folder: Path) -> None:
    key = key_of((folder / "admin.minimq").read_text())
    assert policy(folder).of_key(key.hash, 0) == Principal("admin")
    shared = (folder / "server" / "cluster.key").read_text()
    assert parse_key(shared.strip()) != key
    for path in (folder / "server" / "access.toml", folder / "server" / "cluster.key", folder / "admin.minimq"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = run("secure", "describe", folder).output + (folder / "server" / "access.toml").read_text()
    assert "has the users admin" in shown
    assert secrets_in(shown.encode()) == set()


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


def test_a_dry_run_rejects_a_file_that_exists(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "alice.minimq"
    file.touch()
    outputs = {run("user", "add", "alice", "--to", file, *how, status=2).output for how in ((), ("--dry-run",))}
    assert outputs == {
        f"error: cannot write {file}: the file already exists; give another name, or remove the file if nobody uses "
        "the key in it\n"
    }


def test_the_key_of_the_servers_is_replaced_line_by_line(folder: Path) -> None:
    file = folder / "server" / "cluster.key"
    (former,) = ServerSecrets(folder / "server", requires_certificates=False).keys()
    added = run("secure", "new-key").stdout
    with file.open("a") as opened:
        opened.write(added)
    both = ServerSecrets(folder / "server", requires_certificates=False)
    assert [key.text for key in both.keys()] == [former.text, added.strip()]  # noqa: SIM118 - no dict
    assert both.trust().bearer == former


def test_new_certificates_keep_the_keys(folder: Path) -> None:
    before = key_of((folder / "admin.minimq").read_text())
    secret = {name: (folder / "server" / name).read_bytes() for name in ("cluster.key", "access.toml")}
    run("secure", "renew", folder)
    run("secure", "issue", folder, "admin", "--force")
    assert key_of((folder / "admin.minimq").read_text()) == before
    assert {name: (folder / "server" / name).read_bytes() for name in secret} == secret


def test_a_user_is_added_with_credentials_that_open_and_a_question_is_answered_by_a_rule(folder: Path) -> None:
    text = run("user", "add", "alice", "--write", "orders*", "--group", "${user}-*").stdout
    opened = CredentialsFile(Credentials.from_text(text))
    assert opened.nameservers == ("mq1:9876",)
    assert opened.trust().pair is not None  # the key of the authority is here
    assert found(folder, text) == Principal("alice")
    for question, status, answer in (
        ("alice write topic orders-1", 0, "yes: allow write topic orders* (user alice)"),
        ("alice read group alice-1", 0, "yes: allow read group ${user}-* (user alice)"),
        ("alice read topic orders-1", 1, "no: no rule allows to read topic orders-1"),
        ("bob read topic a", 1, "no: there is no user bob"),
    ):
        assert run("can", *question.split(), status=status).stdout.strip() == answer
    unclear = run("can", "alice", "write", "topic", status=2).stderr
    assert unclear == "error: 'write topic' is about a topic: give it a name, or * for all\n"
    again = run("user", "add", "alice", status=2)
    assert ("exists already" in again.stderr, again.stdout) == (True, "")


def test_the_folder_of_a_server_alone_is_enough(folder: Path, tmp_path: Path) -> None:
    (folder / "authority").rename(tmp_path / "safe")
    alice = tmp_path / "alice.minimq"
    for place, name in ((folder, "alice"), (folder / "server", "bob")):
        to = alice.with_stem(name)
        said = run("user", "add", name, "--secrets", place, "--to", to, "-s", "mq2:1").stdout
        assert said.startswith(f"{to}: the credentials of user {name}")
        opened = CredentialsFile(Credentials(str(to)))
        assert (opened.nameservers, opened.trust().pair) == (("mq2:1",), None)
        assert stat.S_IMODE(to.stat().st_mode) == 0o600
    for to, reason in (
        (alice, "the file already exists; give another name, or remove"),
        (tmp_path / "none" / "carol.minimq", "No such file or directory"),
    ):
        assert f"cannot write {to}: {reason}" in run("user", "add", "carol", "--to", to, status=2).stderr
    assert "carol" not in policy(folder).document.users
    assert "has no access.toml" in run("user", "list", "--secrets", tmp_path, status=2).stderr


def test_rights_come_and_go(folder: Path) -> None:
    run("user", "add", "alice", "--write", "a", "--right", "backup cluster")

    def rules() -> tuple[str, ...]:
        return policy(folder).document.users["alice"].rules

    run("user", "allow", "alice", "--read", "b*", "--transaction", "t", "--role", "admin")
    assert rules() == (
        "allow write topic a",
        "allow backup cluster",
        "allow read topic b*",
        "allow write transaction t",
    )
    run("user", "allow", "alice", "--read", "b*", "--role", "admin", "--delete")
    assert policy(folder).document.users["alice"].roles == ()
    file = AccessFile(folder)
    file.allow("alice", ["deny write topic a"])
    assert run("can", "alice", "write", "topic", "a", status=1).stdout.startswith("no: deny write topic a")
    run("user", "allow", "alice", "--write", "a")  # removes the rule that denies the same
    assert rules() == ("allow write topic a", "allow backup cluster", "allow write transaction t")
    before = file.path.read_bytes()
    for wrong, reason in (
        (("alice",), "nothing to change"),
        (("bob", "--read", "a"), "there is no user bob"),
        (("alice", "--read", "a*b"), "has a name that nothing can have"),
        (("alice", "--role", "boss"), "has the role 'boss', which"),
        (("alice", "--read", "b*", "--delete"), "does not have 'allow read topic b*'"),
        (("alice", "--right", "fly topic a"), "'fly', which is no verb of a topic"),
        (("alice", "--read", "%DLQ%billing"), "'allow read group billing'"),
    ):
        assert reason in run("user", "allow", *wrong, status=2).stderr
    assert file.path.read_bytes() == before


def test_a_key_is_rotated_without_a_gap_or_at_once(folder: Path) -> None:
    first = run("user", "add", "alice").stdout
    second = run("user", "rotate", "alice").stdout
    assert isinstance(found(folder, first), Principal)
    assert isinstance(found(folder, second), Principal)
    assert "2 keys already" in run("user", "rotate", "alice", status=2).stderr
    run("user", "delete-old-keys", "alice")
    assert (found(folder, first), isinstance(found(folder, second), Principal)) == (Rejection.UNKNOWN, True)
    assert "no former key" in run("user", "delete-old-keys", "alice", status=2).stderr
    third = run("user", "rotate", "alice", "--delete-old", "--lifetime", "90d").stdout
    assert (found(folder, second), found(folder, third)) == (Rejection.UNKNOWN, Rejection.EXPIRED)
    assert (
        "--lifetime is 0 s: it must be above 0" in run("user", "rotate", "alice", "--lifetime", "0s", status=2).stderr
    )
    run("user", "remove", "alice")
    assert found(folder, third) is Rejection.UNKNOWN
    assert "there is no user alice" in run("user", "remove", "alice", status=2).stderr


def test_users_are_listed_without_their_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run("user", "add", "alice", "--read", "orders", "--lifetime", "1h").stdout
    asked = ("can", "alice", "read", "topic", "orders")
    assert run(*asked).stdout.startswith("yes: ")
    shown = run("user", "list").stdout + run("user", "list", "--output", "json").stdout
    assert key_of(text).id in shown
    assert secrets_in(shown.encode()) == set()
    later = time.time_ns() + 3_600 * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    states = {row["user"]: row["state"] for row in json.loads(run("user", "list", "--output", "json").stdout)}
    assert states == {"admin": "enabled", "alice": "expired"}
    assert run(*asked, status=1).stdout.startswith("no: key expired: `minimq user rotate alice --delete-old`")


def test_the_file_in_use_is_replaced_by_a_rotation(folder: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "alice.minimq", tmp_path / "link"
    run("user", "add", "alice", "--to", file)
    first = key_of(file.read_text())
    link.symlink_to(file)
    file.chmod(0o640)
    run("user", "rotate", "alice", "--to", link)
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert key_of(file.read_text()) != first
    before = file.read_bytes()
    run("user", "add", "bob")
    (tmp_path / "notes").write_text("mine")
    for name, to, reason in (
        ("alice", file, "2 keys already"),
        ("bob", file, "does not have a valid key of user bob"),
        ("bob", tmp_path / "notes", "is no credentials file"),
        ("nobody", file, "there is no user nobody"),
    ):
        assert reason in run("user", "rotate", name, "--to", to, status=2).stderr
    assert file.read_bytes() == before
    assert (tmp_path / "notes").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"alice.minimq", "link", "notes", "secrets"}


def test_a_client_certificate_stays_in_a_file_that_is_replaced(folder: Path, tmp_path: Path) -> None:
    (folder / "authority").rename(tmp_path / "safe")  # which would sign another one
    run("user", "add", "alice", "--to", tmp_path / "key")
    former = CredentialsFile(Credentials(str(tmp_path / "key")))
    pair = Signer.new().sign_user("alice")
    file = tmp_path / "alice.minimq"
    file.write_text(written(former.nameservers, replace(former.trust(), pair=pair), "Mine."))
    run("user", "rotate", "alice", "--to", file)
    later = CredentialsFile(Credentials(str(file))).trust()
    assert later.pair is not None
    assert later.pair.certificate.strip() == pair.certificate.strip()
    assert later.bearer != former.trust().bearer


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[users.alice]\nrules = ]", "at line 2"),
        (
            '[roles]\nr = []\n\n[users.alice]\nrules = ["allow fly topic a"]',
            "line 5: the rule 'allow fly topic a' has 'fly'",
        ),
        ('[users.alice]\nroles = ["boss"]', "line 2: user alice has the role 'boss'"),
        ('[users.admin]\n\n[users.alice]\nkeys.a = { hash = "b" }', "line 3: user alice has an invalid key"),
        ("[users.alice]\nroles = 7", "roles"),
    ],
)
def test_a_check_names_the_line_of_an_error(folder: Path, text: str, reason: str) -> None:
    file = folder / "server" / "access.toml"
    assert run("access", "check").stdout.endswith("access.toml: 1 user, 0 roles\n")
    file.write_text(text)
    said = run("access", "check", status=2).stderr
    assert "access.toml: " in said
    assert reason in said


def test_changes_at_once_are_all_made(folder: Path) -> None:
    def add(number: int) -> None:
        AccessFile(folder).allow("admin", [f"allow read topic t{number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(16)))
    assert len(policy(folder).document.users["admin"].rules) == 16


def test_what_is_written_is_read_again() -> None:
    document = AccessDocument(
        {
            "a.b": User({"abcdefgh": StoredKey("0" * 64, 7, 8)}, ("admin", "r"), ("allow read topic ${user}-*",)),
            "gone": User(disabled=True),
        },
        {"r": (), "s.t": ("deny read topic a", "allow read topic *")},
    )
    assert from_toml(to_toml(document).encode()) == document
