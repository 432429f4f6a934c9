"""Credentials of users of a cluster that asks for certificates as well."""

from __future__ import annotations

from pathlib import Path

from minimq import Credentials, LocalCluster
from minimq.local.certificate_authority import CertificateAuthority
from support.secure_scraping import trust_of


def credentials_of(secure: LocalCluster, authority: CertificateAuthority, folder: Path, name: str, issued: str) -> Path:
    """Return a file with the key of a user, and the certificate without which such a cluster lets in nobody."""
    bearer = trust_of(Credentials.from_text(issued)).bearer
    assert bearer is not None
    file = folder / f"{name}.minimq"
    file.write_text(authority.credentials(name, [secure.nameserver], bearer))
    return file
