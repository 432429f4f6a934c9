"""Credentials of users: files, texts, and what is wrong with them, without a word of what is secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Cluster, Credentials, ProducerOptions
from minimq.errors import InvalidArgument
from minimq.local.certificate_signer import Signer
from minimq_common.security.certificates import Trust
from minimq_common.security.channel_security import VARIABLE, open_credentials
from minimq_common.security.credentials_file import CredentialsFile, written
from minimq_common.security.user_key import new_key
from minimq_common.wire import rpc
from minimq_proto.v1.broker_pb2_grpc import BrokerStub
from support.cases import for_each

SIGNER = Signer.new()
ROOTS, PAIR = SIGNER.pair.certificate, SIGNER.sign_user("alice")
BEARER = new_key(bytes(range(37)))
TEXT = written(["mq1:9876", "mq2:9876"], Trust(ROOTS, PAIR, BEARER), "Of alice.")
SECRET = PAIR.key.decode().splitlines()[1]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "alice.minimq"
    file.write_text(TEXT)
    for credentials in (Credentials(str(file)), Credentials.from_text(TEXT)):
        opened = CredentialsFile(credentials)
        assert opened.nameservers == ("mq1:9876", "mq2:9876")
        found = opened.trust()
        assert found.roots.strip() == ROOTS.strip()
        assert found.pair is not None
        assert found.pair.key.strip() == PAIR.key.strip()
        assert found.bearer == BEARER
        assert opened.trust() is found
    assert CredentialsFile(Credentials.from_text(written([], Trust(ROOTS), "Of nobody."))).trust().pair is None


def test_nothing_that_stands_for_a_user_shows_the_key() -> None:
    opened = CredentialsFile(Credentials.from_text(TEXT))
    with rpc.open_channel("127.0.0.1:1", opened.trust()) as channel:
        for shown in (opened._content.get(), opened.trust(), BrokerStub(channel).GetStatus, channel):
            assert BEARER.text not in repr(shown)
            assert SECRET not in repr(shown)


def test_credentials_are_those_that_are_given_or_those_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alice.minimq"
    file.write_text(TEXT)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_credentials(None) is None
    monkeypatch.setenv(VARIABLE, str(file))
    assert open_credentials(None) is not None
    monkeypatch.setenv(VARIABLE, f"{file}\r\n")  # from a file
    assert open_credentials(None) is not None
    monkeypatch.setenv(VARIABLE, f'"{file}"')
    with pytest.raises(InvalidArgument, match=f"^{VARIABLE}: credentials contains the character"):
        open_credentials(None)
    monkeypatch.setenv(VARIABLE, str(file))
    assert open_credentials("") is None
    with Cluster() as cluster:
        assert cluster.nameservers == ("mq1:9876", "mq2:9876")
    with Cluster("mq3:9876", credentials=file) as cluster:
        assert cluster.nameservers == ("mq3:9876",)


@for_each(
    ("text", "reason"),
    [
        ("no TOML " + SECRET, "it is not TOML"),
        (TEXT + f'\nsecret = "{SECRET}"', "unknown field `secret`"),
        (TEXT.replace('["mq1:9876", "mq2:9876"]', '"mq1:9876"'), "Expected `array`"),
        (TEXT.replace("mq2:9876", "mq2"), "mq2"),
        (TEXT.replace("private_key", "certificate_key"), "unknown field"),
        (
            TEXT.replace(BEARER.text, BEARER.text[:-9]),
            "cannot be used: this is not a key of minimq, or it was truncated",
        ),
        (written([], Trust(ROOTS, PAIR), "Of alice.").partition("private_key")[0], "both or none"),
        (
            TEXT.replace(ROOTS.decode().splitlines()[2], "AAAA"),
            "ca in .* holds no certificate in PEM, or a damaged one",
        ),
        (
            written([], Trust(ROOTS, type(PAIR)(PAIR.certificate, Signer.new().pair.key)), "Of alice."),
            "the key is that of another certificate",
        ),
    ],
)
def test_what_is_no_credentials_is_rejected_without_showing_it(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "alice.minimq"
    file.write_text(text)
    for credentials in (Credentials(str(file)), Credentials.from_text(text)):
        with pytest.raises(InvalidArgument, match=reason) as raised:
            CredentialsFile(credentials)
        assert SECRET not in raised.value.message
        assert BEARER.text[:-9] not in raised.value.message
        assert raised.value.__cause__ is None


def test_nothing_shows_what_is_secret() -> None:
    credentials = Credentials.from_text(TEXT)
    shown = f"{credentials} {credentials!r} {ProducerOptions(credentials=credentials)!r}"
    shown += repr(CredentialsFile(credentials).trust())
    assert SECRET not in shown
    assert BEARER.text.split("_")[2] not in shown


@for_each(
    "content",
    [
        TEXT,
        TEXT.partition("\n")[2],
        BEARER.text,
        f" {BEARER.text}\n",
        TEXT.replace("\n", "\r"),
        f'key = "{BEARER.text}"',
    ],
)
def test_the_content_of_a_file_in_place_of_its_path_is_told_and_not_shown(content: str) -> None:
    with pytest.raises(InvalidArgument, match=r"not its path: .*Credentials.from_text") as raised:
        open_credentials(content)
    assert SECRET not in raised.value.message
    assert BEARER.text.split("_")[2] not in raised.value.message
