"""A cluster with TLS, which lets in nobody without a certificate: three servers for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conftest import check_stores
from minimq import Admin, LocalCluster
from minimq.local.certificate_authority import CertificateAuthority
from support.server_copies import real_commands


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A name server, which is the controller, a broker and its slave. They log as JSON and show their metrics."""
    options = {
        "metrics": "127.0.0.1:0",
        "log_format": "json",
        "log_level": "debug",  # so that a test sees what is ever logged
        "client_certificates": "required",
    }
    cluster = LocalCluster(
        brokers=1,
        slaves=1,
        data_dir=tmp_path_factory.mktemp("secure"),
        secure=True,
        broker_options=options,
        nameserver_options={**options, "term_lease_s": 10.0},  # so that a busy machine elects no other master
    )
    with real_commands():  # a test looks at what others see of them
        cluster.start()
    with cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=2)
        yield cluster
    check_stores(cluster)


@pytest.fixture(scope="session")
def authority(secure: LocalCluster) -> CertificateAuthority:
    """The authority of `secure`."""
    return CertificateAuthority(secure.data_dir / "secrets")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory, secure: LocalCluster) -> CertificateAuthority:
    """The authority of another cluster, whose admin has the addresses of `secure`."""
    other = CertificateAuthority(tmp_path_factory.mktemp("stranger"))
    other.init([], [server.address for server in secure.nameservers])
    return other
