"""Files that users write with editors of other systems: byte order marks, and other encodings."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from minimq.local.certificate_signer import Signer
from minimq_broker.assembly import BrokerOptions
from minimq_common.errors import InvalidArgument
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile, written
from minimq_common.security.server_secrets import (
    ACCESS,
    CERTIFICATE,
    CLUSTER_KEY,
    KEY,
    ROOTS,
    ServerSecrets,
    security_of_folder,
)
from minimq_common.security.user_key import ID_BYTES, SECRET_BYTES, new_key
from minimq_common.serving.options import read_config
from support.cases import for_each

BEARER = new_key(bytes(range(ID_BYTES + SECRET_BYTES)))
Saved = Callable[[str], bytes]


def _secrets(folder: Path, trust: Trust, save: Saved) -> object:
    assert trust.pair is not None
    texts = {CERTIFICATE: trust.pair.certificate, KEY: trust.pair.key, ROOTS: trust.roots}
    texts |= {CLUSTER_KEY: BEARER.text.encode(), ACCESS: b"[users.alice]"}
    for name, text in texts.items():
        (folder / name).write_bytes(save(text.decode()))
    secrets = ServerSecrets(folder, requires_certificates=False)
    return secrets.trust(), secrets.keys(), secrets.users()


def _config(folder: Path, _: Trust, save: Saved) -> object:
    (folder / "server.toml").write_bytes(save('name = "broker-b"\n'))
    return read_config(folder / "server.toml", BrokerOptions)


def _credentials(folder: Path, trust: Trust, save: Saved) -> object:
    text = written(["mq1:9876"], trust, "about")
    (folder / "alice.minimq").write_bytes(save(text))
    return CredentialsFile(Credentials(str(folder / "alice.minimq"))).trust()


def _authorities(folder: Path, trust: Trust, save: Saved) -> object:
    (folder / "etcd").mkdir(exist_ok=True)
    (folder / "etcd" / ROOTS).write_bytes(save(trust.roots.decode()))
    return security_of_folder(folder / "etcd").trust()


@pytest.fixture(scope="module")
def trust() -> Trust:
    signer = Signer.new()
    return Trust(signer.pair.certificate, signer.sign_server(["127.0.0.1"]))


@for_each("load", [_secrets, _config, _credentials, _authorities])
def test_a_byte_order_mark_of_utf_8_changes_nothing_and_other_encodings_are_named(
    load: Callable[[Path, Trust, Saved], object], trust: Trust, tmp_path: Path
) -> None:
    plain = load(tmp_path, trust, lambda text: text.encode())
    assert load(tmp_path, trust, lambda text: codecs.BOM_UTF8 + text.encode()) == plain
    for encoding in ("utf-16", "utf-32"):
        with pytest.raises(
            InvalidArgument, match=rf"is in {encoding.upper()}, by its byte order mark: save it in UTF-8"
        ):
            load(tmp_path, trust, partial(str.encode, encoding=encoding))


def test_the_text_of_credentials_may_begin_with_a_mark(trust: Trust) -> None:
    assert CredentialsFile(Credentials.from_text("\ufeff" + written([], trust, "about"))).trust() == trust
