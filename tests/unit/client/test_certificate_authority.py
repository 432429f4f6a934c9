"""The folder of a certificate authority, and the command that makes it."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from minimq.errors import InvalidArgument
from minimq.local import certificate_signer
from minimq.local.certificate_authority import CertificateAuthority
from minimq_cli.main import main
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile
from minimq_common.security.server_secrets import ServerSecrets


def run(*arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, ["secure", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def test_two_commands_make_what_servers_and_users_need(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    printed = run(
        "init", folder, "--host", "mq1.example.org,10.0.0.1", "--host", "*.mq,a_b,[::5]", "-s", "mq1.example.org:9876"
    )
    assert f"--secrets {folder}/server\n" in printed.stdout
    secrets = ServerSecrets(folder / "server", requires_certificates=True)
    names = (
        "localhost",
        "127.0.0.1",
        "0:0:0:0:0:0:0:1",
        "mq1.example.org",
        "10.0.0.1",
        "*.mq",
        "a_b",
        "0:0:0:0:0:0:0:5",
    )
    assert secrets.certificate.names == names
    admin = CredentialsFile(Credentials(str(folder / "admin.minimq")))
    assert admin.nameservers == ("mq1.example.org:9876",)
    assert admin.trust().roots.strip() == secrets.trust().roots.strip()

    assert run("issue", folder, "alice").stdout.strip() == f"{folder}/alice.minimq"
    assert "--force" in run("issue", folder, "alice", status=2).stderr
    run("issue", folder, "alice", "--force", "-s", "mq2:1")
    assert CredentialsFile(Credentials(str(folder / "alice.minimq"))).nameservers == ("mq2:1",)

    for path in folder.rglob("*"):
        is_secret = path.suffix != ".crt"
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600 if is_secret else 0o644), path


def test_renewed_certificates_keep_their_names(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.init(["mq1"], [])
    former = (authority.server / "tls.crt").read_bytes()
    assert "mq1, mq2, valid until 20" in run("renew", tmp_path, "--host", "mq2").stdout
    assert (authority.server / "tls.crt").read_bytes() != former
    rows = {row["certificate"]: row for row in json.loads(run("describe", tmp_path, "--output", "json").stdout)}
    assert rows["servers"]["names"] == ["localhost", "127.0.0.1", "::1", "mq1", "mq2"]
    assert rows["authority"]["left"].startswith("3649d")
    assert list(rows) == ["authority", "servers", "user admin"]


@pytest.mark.parametrize("host", ["mq1:9876", "", "a b", "-a", "a..b", "ü", "*", "a" * 64, "mq/1", "mq1\n"])
def test_hosts_are_names_or_addresses(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="neither a name nor an address"):
        CertificateAuthority(tmp_path / "secrets").init([host], [])
    assert not (tmp_path / "secrets").exists()


def test_what_is_no_authority_is_named(tmp_path: Path) -> None:
    for command in (("renew", tmp_path), ("describe", tmp_path), ("issue", tmp_path, "alice")):
        assert f"cannot read {tmp_path}/" in run(*command, status=2).stderr
    authority = CertificateAuthority(tmp_path)
    authority.init([], [])
    (tmp_path / "authority" / "ca.key").write_text("garbage")
    assert "restore both from a backup" in run("renew", tmp_path, status=2).stderr


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except InvalidSignature:
        return False
    return True


def fits(folder: Path, *users: str) -> None:
    """Fail unless servers and users trust each other."""
    roots = (folder / "server" / "ca.crt").read_bytes()
    ServerSecrets(folder / "server", requires_certificates=True)
    for user in ("admin", *users):
        trust = CredentialsFile(Credentials(str(folder / f"{user}.minimq"))).trust()
        assert trust.roots.strip() == roots.strip()
        assert trust.pair is not None
        of_user = x509.load_pem_x509_certificate(trust.pair.certificate)
        signers = x509.load_pem_x509_certificates(roots)
        assert any(is_signed_by(of_user, signer) for signer in signers)


def test_of_many_who_make_an_authority_at_once_one_does(tmp_path: Path) -> None:
    def make(_: int) -> bool:
        return CertificateAuthority(tmp_path).init([], [], if_not_exists=True)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(8))) == 1
    fits(tmp_path)


def test_an_interrupted_init_is_made_anew(tmp_path: Path) -> None:
    run("init", tmp_path)
    (tmp_path / "authority" / "ca.crt").unlink()  # the last file
    run("init", tmp_path)
    fits(tmp_path)


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", tmp_path)
    before = content(tmp_path)
    fsync, done = os.fsync, []

    def full(opened: int) -> None:
        done.append(opened)
        if len(done) % 2 == 0:  # not at the first file
            raise OSError(28, "No space left on device")
        fsync(opened)

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in run("renew", tmp_path, status=2).stderr
    assert content(tmp_path) == before
    monkeypatch.undo()
    run("renew", tmp_path)
    fits(tmp_path)


def test_a_certificate_that_is_made_anew_keeps_the_name_servers_and_the_key(tmp_path: Path) -> None:
    run("init", tmp_path, "-s", "mq1:9876")
    made = CredentialsFile(Credentials(str(tmp_path / "admin.minimq")))
    key = made.trust().bearer
    assert run("issue", tmp_path, "admin", "--force").stderr == ""
    again = CredentialsFile(Credentials(str(tmp_path / "admin.minimq")))
    assert (again.nameservers, again.trust().bearer) == (("mq1:9876",), key)
    run("issue", tmp_path, "admin", "--force", "-s", "mq2:9876,mq3:9876")
    run("issue", tmp_path, "admin", "--force")
    assert CredentialsFile(Credentials(str(tmp_path / "admin.minimq"))).nameservers == ("mq2:9876", "mq3:9876")
    issued = run("issue", tmp_path, "alice")
    assert "there is no key in it" in issued.stderr
    assert CredentialsFile(Credentials(str(tmp_path / "alice.minimq"))).nameservers == ("mq2:9876", "mq3:9876")


def test_certificates_that_end_soon_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("init", tmp_path)
    assert run("describe", tmp_path).stderr == ""
    monkeypatch.setattr(certificate_signer, "_DAYS", 29)
    run("renew", tmp_path)
    run("issue", tmp_path, "admin", "--force")
    servers, admin = run("describe", tmp_path).stderr.splitlines()
    assert servers == (
        f"warning: the certificate of servers ends in 28d 23h: `minimq secure renew {tmp_path}` makes a new one"
    )
    assert f"`minimq secure issue {tmp_path} admin --force`" in admin
