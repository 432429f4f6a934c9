"""Issuers of tokens in the document of users and rules, and the commands for them."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace

from minimq import Credentials
from minimq.admin.users import Rehearsal
from minimq.local.certificate_authority import CertificateAuthority
from minimq_cli.main import main
from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, StoredKey, User, changes, decode, from_toml, to_toml
from minimq_common.security.access_policy import Policy
from minimq_common.security.access_rule import need_of
from minimq_common.security.channel_security import open_credentials
from minimq_common.security.credentials_file import CredentialsFile, written
from minimq_common.security.issuer import Issuer
from minimq_common.security.tokens import UserToken
from minimq_common.security.user_key import new_key
from support.cases import for_each

ROOT = Path(__file__).parents[4]
K8S = Issuer("https://kubernetes.default.svc", "minimq", "k8s.json", user_prefix="system:serviceaccount:")
SSO = Issuer(
    "https://sso.example.org/", "minimq", "https://sso.example.org/keys", "sso.crt", "email", "", ("readers",),
    "groups", {"ops \"night\" \u00e9\U0001f600": "admin", "dev": "readers"},
)  # fmt: skip
USER = "k8s:shop:checkout"
DOCUMENT = AccessDocument(
    7,
    {"root": User({"aaaaaaaa": StoredKey("0" * 64)}, ("admin",)), USER: User(rules=("allow write topic orders*",))},
    {"readers": ("allow read topic *",)},
    {"k8s": K8S, "sso": SSO},
)


def test_a_document_with_issuers_is_read_as_it_is_written() -> None:
    assert from_toml(to_toml(DOCUMENT).encode()) == DOCUMENT
    assert decode(DOCUMENT.encoded()) == DOCUMENT
    without = AccessDocument(1)
    assert b"issuers" not in without.encoded()  # as former releases read it
    assert [*changes(without, DOCUMENT)][-2].startswith("issuer k8s added: issuer https://kubernetes.default.svc, aud")


@for_each(
    ("fields", "reason"),
    [
        ({"issuer": ""}, "invalid issuer"),
        ({"audience": "a b"}, "invalid audience"),
        ({"user_claim": ""}, "invalid user_claim"),
        ({"jwks": "http://sso.example.org/keys"}, "https:// URL"),
        ({"jwks": "ftp://sso.example.org/keys"}, "https:// URL"),
        ({"jwks": "file:///etc/passwd"}, "https:// URL"),
        ({"jwks": "https://user:word@sso.example.org/keys"}, "without a user and a password"),
        ({"jwks": "https:///keys"}, "https:// URL"),
        ({"jwks": "https://sso.example.org:port/keys"}, "https:// URL"),
        ({"jwks": "http://127.0.0.1.example.org/keys"}, "https:// URL"),
        ({"jwks": "../cluster.key"}, "name of a file"),
        ({"jwks": "/etc/passwd"}, "name of a file"),
        ({"jwks": ""}, "name of a file"),
        ({"ca": "ca.crt"}, "its jwks is a file"),
        ({"jwks": "https://sso.example.org/keys", "ca": "/etc/ca.crt"}, "name of a file"),
        ({"roles": ("nobody",)}, "'nobody', which the document does not have"),
        ({"role_claim": "groups", "claimed_roles": {"a": "%servers"}}, "'%servers', which the document does not have"),
        ({"claimed_roles": {"a": "admin"}}, "give the claim"),
        ({"role_claim": "groups", "claimed_roles": {"": "admin"}}, "empty"),
        ({"role_claim": "groups", "claimed_roles": {str(n): "admin" for n in range(257)}}, "limit is 256"),
        ({"issuer": SSO.issuer}, "are the same"),
    ],
)
def test_an_issuer_that_cannot_be_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        decode(replace(DOCUMENT, issuers={"k8s": replace(K8S, **fields), "sso": SSO}).encoded())


@for_each("url", ["http://127.0.0.1:1/keys", "http://[::1]:1/", "http://localhost/", "https://a/?b=c"])
def test_keys_are_fetched_by_https_or_from_this_machine(url: str) -> None:
    decode(replace(DOCUMENT, issuers={"k8s": replace(K8S, jwks=url)}).encoded())


@for_each(
    ("name", "user", "reason"),
    [
        ("other:shop", User(), "one of issuer other, which the document does not have"),
        ("k8s:*", User(), "no name for a user of an issuer"),
        ("k8s:", User(), "no name for a user of an issuer"),
        (f"k8s:{'x' * 300}", User(), "no name for a user of an issuer"),
        ("k8s:shop", User({"aaaaaaaa": StoredKey("1" * 64)}), "has a key"),
        ("%servers", User(), "no name for a user"),
    ],
)
def test_a_user_of_an_issuer_has_a_name_that_a_token_can_have_and_no_key(name: str, user: User, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        decode(replace(DOCUMENT, users={**DOCUMENT.users, name: user}).encoded())


def test_too_many_issuers_are_refused() -> None:
    many = {f"i{number}": replace(K8S, issuer=f"https://{number}") for number in range(17)}
    with pytest.raises(InvalidArgument, match="17 issuers"):
        decode(AccessDocument(1, issuers=many).encoded())


def test_users_of_an_issuer_have_the_roles_of_all_of_them_and_rules_of_their_own() -> None:
    policy, read, write = Policy(DOCUMENT), need_of("read", "topic", "t"), need_of("write", "topic", "orders-1")
    assert policy.decide("sso:eve@example.org", read).source == "role readers"
    assert not policy.decide("sso:eve@example.org", write).allowed
    assert policy.decide("sso:eve@example.org", write, ("admin",)).allowed
    assert policy.answer(USER, write, 0).allowed
    assert policy.answer("k8s:other", write, 0).reason == "no rule allows to write topic orders-1"
    assert policy.answer("nobody:other", write, 0).reason == "there is no user nobody:other"


CHANGES: list[tuple[Callable[[Any], object], str]] = [
    (lambda admin: admin.add_user("k8s:x"), "tokens of issuer k8s instead of keys"),
    (lambda admin: admin.rotate_user(USER), "tokens of issuer k8s instead of keys"),
    (lambda admin: admin.delete_old_keys(USER), "tokens of issuer k8s instead of keys"),
    (lambda admin: admin.add_rules("other:x", ["allow read topic t"]), "there is no issuer other"),
    (lambda admin: admin.add_rules("k8s:a b", ["allow read topic t"]), "there is no user k8s:a b"),
    (lambda admin: admin.delete_user("k8s:unknown"), "there is no user k8s:unknown"),
    (lambda admin: admin.add_issuer("k8s", K8S), "--replace"),
    (lambda admin: admin.add_issuer("new", replace(K8S, issuer="x"), replaces=True), "there is no issuer new"),
    (lambda admin: admin.delete_issuer("new"), "there is no issuer new"),
]


@for_each(("change", "reason"), CHANGES)
def test_a_change_that_makes_no_sense_for_users_of_an_issuer_is_refused(
    change: Callable[[Any], object], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        change(Rehearsal(DOCUMENT))


def test_an_administrator_of_an_issuer_is_not_the_last_one() -> None:
    admin = Rehearsal(DOCUMENT)
    admin.add_rules(USER, [], ["admin"])
    with pytest.raises(InvalidArgument, match="no user would be left"):
        admin.delete_user("root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CertificateAuthority(tmp_path / "secrets").init(["mq1"], ["mq1:9876"])
    return tmp_path / "secrets"


def run(*arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def test_issuers_come_and_go_by_commands(folder: Path) -> None:
    at = ("--secrets", folder)
    given = ("--issuer", K8S.issuer, "--audience", "minimq", "--jwks", "k8s.json")
    assert run("access", "issuer", "list", *at).output == "no issuers\n"
    said = run("access", "issuer", "add", "k8s", *given, "--user-prefix", K8S.user_prefix, *at).output
    assert "its users are k8s:USER; users and rules have version 2 now" in said
    assert from_toml((folder / "server" / "access.toml").read_bytes()).known_issuers == {"k8s": K8S}
    run("user", "allow", USER, "--write", "orders*", *at)
    assert run("can", USER, "write", "topic", "orders-1", *at).output.startswith("yes: allow write topic orders*")
    run("user", "disable", "k8s:shop:other", *at)
    listed = {row["user"]: row for row in json.loads(run("user", "list", "--output", "json", *at).output)}
    assert (listed["k8s:shop:other"]["state"], listed[USER]["keys"]) == ("disabled", [])
    roles = ("--role-claim", "groups", "--claimed-role", "a=b=admin", "--replace")
    run("access", "issuer", "add", "k8s", *given, *roles, *at)
    [row] = json.loads(run("access", "issuer", "list", "--output", "json", *at).output)
    assert (row["name"], row["claimed_roles"], row["user_prefix"]) == ("k8s", {"a=b": "admin"}, None)
    assert "groups a=b: admin" in " ".join(run("access", "issuer", "list", *at).output.split())
    assert (
        "takes VALUE=ROLE" in run("access", "issuer", "add", "x", *given, "--claimed-role", "a", *at, status=2).output
    )
    run("access", "issuer", "delete", "k8s", "--yes", *at)
    left = from_toml((folder / "server" / "access.toml").read_bytes())
    assert (sorted(left.users), left.known_issuers) == (["admin"], {})


def test_credentials_of_a_token_name_its_file_and_follow_it(folder: Path, tmp_path: Path) -> None:
    text = run("access", "credentials", "--token-file", "own.token", "--secrets", folder).output
    file, token = tmp_path / "token.minimq", tmp_path / "own.token"
    file.write_text(text)
    for content, reason in ((None, "cannot read"), ("", "has no token"), ("a.b\nc.d", "has no token")):
        if content is not None:
            token.write_text(content)
        with pytest.raises(InvalidArgument, match=reason) as raised:
            open_credentials(file)
        assert "a.b" not in raised.value.message
    token.write_text("aaa.bbb.ccc\n")
    opened = CredentialsFile(Credentials(str(file)))
    first = opened.trust()
    assert first.bearer == UserToken(str(token), "aaa.bbb.ccc")
    assert opened.trust(at_once=True) is first
    assert "aaa.bbb" not in repr(first)
    token.write_text("aaa.bbb.ddd")
    second = opened.trust(at_once=True)
    assert second.bearer == UserToken(str(token), "aaa.bbb.ddd")
    token.unlink()
    assert opened.trust(at_once=True) is second  # the former one stands
    key = f"key = '{new_key(bytes(37)).text}'\n"
    with pytest.raises(InvalidArgument, match="has a key and a token_file: give one of them"):
        CredentialsFile(Credentials.from_text(key + text))


def test_a_token_may_be_in_the_credentials_themselves(folder: Path) -> None:
    text = run("access", "credentials", "--token-file", "own.token", "--secrets", folder).output
    held = text.replace('token_file = "own.token"', 'token = "aaa.bbb.ccc"')
    opened = CredentialsFile(Credentials.from_text(held))
    assert opened.trust().bearer == UserToken("", "aaa.bbb.ccc")
    again = written((), opened.trust(), "again")
    assert CredentialsFile(Credentials.from_text(again)).trust() == opened.trust()
    with pytest.raises(InvalidArgument, match="has no token") as raised:
        CredentialsFile(Credentials.from_text(held.replace("aaa.bbb.ccc", "aaa")))
    assert "aaa" not in raised.value.message


def documented(page: str) -> list[list[str]]:
    """Return the commands about issuers and their users that a page prints, in words."""
    text = (ROOT / "docs" / page).read_text()
    block = next(block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "access issuer add" in block)
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line.partition(" > ")[0], comments=True)[1:] for line in lines if line.startswith("minimq ")]


@pytest.mark.parametrize("page", ["security.md", "kubernetes.md"])
def test_the_commands_of_the_pages_run(folder: Path, page: str) -> None:
    commands = documented(page)
    assert [words[:3] for words in commands[:2]] == [["access", "issuer", "add"], ["user", "allow", USER]]
    outputs = [run(*words, "--secrets", folder).output for words in commands]
    assert "token_file = " in outputs[-1]
    assert run("can", USER, "write", "topic", "orders-1", "--secrets", folder).output.startswith("yes")


def test_a_pod_gets_the_token_that_the_issuer_and_the_credentials_name() -> None:
    added, _, credentials = documented("kubernetes.md")
    pages = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "kubernetes.md").read_text(), re.DOTALL)
    pod = next(yaml.safe_load(text) for text in pages if "serviceAccountToken" in text)
    [volume] = pod["spec"]["volumes"]
    [token] = [each["serviceAccountToken"] for each in volume["projected"]["sources"] if "serviceAccountToken" in each]
    assert token["audience"] == added[added.index("--audience") + 1]
    assert token["path"] == credentials[credentials.index("--token-file") + 1]
    namespace, account = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
    assert f"k8s:{namespace}:{account}" == USER


def test_credentials_of_a_token_stay_what_they_are_when_the_authority_is_replaced(folder: Path) -> None:
    file = folder / "shop.minimq"
    file.write_text(run("access", "credentials", "--token-file", "elsewhere", "--secrets", folder).output)
    before = CredentialsFile(Credentials(str(file))).stored
    given = ("--issuer", K8S.issuer, "--audience", "minimq", "--jwks", "k8s.json")
    run("access", "issuer", "add", "k8s", *given, "--secrets", folder)
    run("user", "allow", USER, "--write", "orders*", "--secrets", folder)
    said = [run("secure", "renew", folder, "--ca", step, "--yes").output for step in ("add", "use", "retire")]
    assert "those for tokens of k8s (`minimq access credentials` writes new ones)" in said[0]
    assert USER not in said[0]
    after = CredentialsFile(Credentials(str(file))).stored
    assert after.roots != before.roots
    assert dataclasses.replace(after, roots=before.roots) == before
    assert "secret" not in file.read_text()
