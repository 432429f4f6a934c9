"""Every user may ask which rights it has, and nobody learns about those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from minimq.errors import InvalidArgument
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common.security.access_rule import need_of
from support.user_files import credentials_of

pytestmark = pytest.mark.system

READ, WRITE = need_of("read", "topic", "asked-about"), need_of("write", "topic", "asked-about")
OF_GROUP, DESCRIBE = need_of("manage", "group", "asked-about"), need_of("describe", "cluster")


def test_users_are_told_their_name_and_rights(
    secure: LocalCluster, authority: CertificateAuthority, tmp_path: Path
) -> None:
    with Admin(credentials=secure.credentials) as root:
        issued = root.add_user(
            "asker", ["allow read topic asked-*", "allow manage group *", "deny manage group asked-*"]
        )
        file = credentials_of(secure, authority, tmp_path, "asker", issued)
        asked = [READ, WRITE, OF_GROUP, DESCRIBE, READ]
        with Admin(credentials=file) as admin:
            assert admin.own_rights(asked) == ("asker", frozenset({READ}))
            assert admin.own_rights([]) == ("asker", frozenset())
            root.add_rules("asker", ["allow describe cluster"])
            assert admin.own_rights(asked) == ("asker", frozenset({READ, DESCRIBE}))
        assert root.own_rights(asked) == ("admin", frozenset(asked))


def test_a_right_that_cannot_be_and_too_many_are_refused(secure: LocalCluster) -> None:
    with Admin(credentials=secure.credentials) as root, pytest.raises(InvalidArgument, match="limit is 1000"):
        root.own_rights(need_of("read", "topic", f"asked-{number}") for number in range(1_001))


def test_a_cluster_without_access_control_allows_everything_to_nobody_in_particular(cluster: LocalCluster) -> None:
    with Admin(cluster.nameserver) as admin:
        assert admin.own_rights([READ, DESCRIBE]) == ("", frozenset({READ, DESCRIBE}))
