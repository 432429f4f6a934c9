"""The folder of a certificate authority, and the command that makes it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minimq.cli.main import main
from minimq.errors import InvalidArgument
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile
from minimq_common.security.server_secrets import ServerSecrets


def run(*arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, ["secure", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def test_two_commands_make_what_servers_and_users_need(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    printed = run("init", folder, "--host", "mq1.example.org,10.0.0.1", "--host", "*.mq", "-n", "mq1.example.org:9876")
    assert f"--secrets {folder}/server --client-certificates required" in printed.stdout
    secrets = ServerSecrets(folder / "server", requires_certificates=True)
    names = ("localhost", "127.0.0.1", "0:0:0:0:0:0:0:1", "mq1.example.org", "10.0.0.1", "*.mq")
    assert secrets.certificate.names == names
    admin = CredentialsFile(Credentials(str(folder / "admin.minimq")))
    assert admin.nameservers == ("mq1.example.org:9876",)
    assert admin.trust().roots.strip() == secrets.trust().roots.strip()

    assert run("issue", folder, "alice").stdout.strip() == f"{folder}/alice.minimq"
    assert "--force" in run("issue", folder, "alice", status=2).stderr
    run("issue", folder, "alice", "--force", "-n", "mq2:1")
    assert CredentialsFile(Credentials(str(folder / "alice.minimq"))).nameservers == ("mq2:1",)

    for path in folder.rglob("*"):
        is_secret = path.suffix in {".key", ".minimq"}
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600 if is_secret else 0o644), path


def test_renewed_certificates_keep_their_names(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.init(["mq1"], [])
    former = (authority.server / "tls.crt").read_bytes()
    assert "mq1, mq2, good until 20" in run("renew", tmp_path, "--host", "mq2").stdout
    assert (authority.server / "tls.crt").read_bytes() != former
    rows = {row["certificate"]: row for row in json.loads(run("show", tmp_path, "--output", "json").stdout)}
    assert rows["servers"]["names"] == ["localhost", "127.0.0.1", "::1", "mq1", "mq2"]
    assert rows["authority"]["left"].startswith("3649d")


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    run("init", tmp_path)
    made = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "nothing was changed" in run("init", tmp_path, "--if-absent").stdout
    assert "has an authority already" in run("init", tmp_path, status=2).stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == made


@pytest.mark.parametrize("host", ["mq1:9876", "", "a b", "-a", "a..b", "ü", "*", "a" * 64, "mq/1", "mq1\n"])
def test_hosts_are_names_or_addresses(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="neither a name nor an address"):
        CertificateAuthority(tmp_path / "secrets").init([host], [])
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("user", ["", "../admin", "a/b", ".a", "a" * 64, "ü", "a\n"])
def test_users_are_names(user: str, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.init([], [])
    with pytest.raises(InvalidArgument, match="is no name"):
        authority.issue(user, [])


def test_what_is_no_authority_is_named(tmp_path: Path) -> None:
    for command in (("renew", tmp_path), ("show", tmp_path), ("issue", tmp_path, "alice")):
        assert f"cannot read {tmp_path}/" in run(*command, status=2).stderr
    authority = CertificateAuthority(tmp_path)
    authority.init([], [])
    (tmp_path / "authority" / "ca.key").write_text("garbage")
    assert "restore both from a backup" in run("renew", tmp_path, status=2).stderr
