"""Users of an identity provider show tokens in place of keys: who they are, what they may, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import AccessDenied, InvalidArgument, NotAuthenticated
from minimq_common.security.access_rule import need_of
from support.live_user import PATIENCE_S, RULES, TOPIC, Idle, Sending
from support.tokens import TokenIssuer, issuer_at, key_server, replace_token
from support.waiting import wait_until

pytestmark = pytest.mark.system

ADMIN = need_of("access", "cluster")
WRITE = need_of("write", "topic", TOPIC)
FILE = "issuer.json"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("tokens")
    options = {"metrics": "127.0.0.1:0", "log_level": "debug", "log_format": "json"}
    with LocalCluster(
        brokers=1, data_dir=folder, secure=True, broker_options=options, nameserver_options=options
    ) as cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic(TOPIC, queues=2)
        yield cluster


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


@pytest.fixture(scope="module")
def issuer(secure: LocalCluster, admin: Admin) -> TokenIssuer:
    """An issuer whose keys are in a file of the servers."""
    made = TokenIssuer()
    (secure.data_dir / "secrets" / "server" / FILE).write_bytes(made.key_set())
    admin.add_issuer("k8s", issuer_at(FILE))
    return made


class Holder:
    """Whoever has a token in a file.

    Attributes:
        credentials: name that file.
    """

    def __init__(self, admin: Admin, folder: Path, token: str) -> None:
        self.path = folder / "token"
        self.path.write_text(token)
        self.credentials = Credentials.from_text(admin.token_credentials(str(self.path)))


@pytest.fixture
def holder(admin: Admin, issuer: TokenIssuer, tmp_path: Path) -> Callable[..., Holder]:
    """Make a token for a user, and return who has it."""
    return lambda *args, **others: Holder(admin, tmp_path, issuer.sign(*args, **others))


def test_a_user_of_an_issuer_needs_no_secret_and_has_the_rights_that_it_is_given(
    admin: Admin, holder: Callable[..., Holder]
) -> None:
    own = holder("shop:checkout")
    with Admin(credentials=own.credentials) as asking:
        assert asking.own_rights([WRITE, ADMIN]) == ("k8s:shop:checkout", frozenset())
        with pytest.raises(AccessDenied, match="`minimq user allow k8s:shop:checkout"):
            asking.queues(TOPIC)
        admin.add_rules("k8s:shop:checkout", RULES)
        assert asking.own_rights([WRITE, ADMIN]) == ("k8s:shop:checkout", frozenset({WRITE}))
    with Producer(credentials=own.credentials) as producer:
        producer.send(Message(TOPIC, b"x"))
    with PullConsumer(credentials=own.credentials, group="g-k8s", start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        wait_until(lambda: consumer.poll(0.2), PATIENCE_S, what="it reads")
    with pytest.raises(InvalidArgument, match="which makes tokens for it"):
        admin.rotate_key("k8s:shop:checkout")
