"""Users of an identity provider show tokens in place of keys: who they are, what they may, and until when."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import AccessDenied, InvalidArgument, NotAuthenticated, Unavailable
from minimq_common.security.access_rule import need_of
from support.live_user import PATIENCE_S, RULES, TOPIC, Idle, Sending
from support.scraping import metrics_address
from support.secure_scraping import scrape, trust_of
from support.tokens import TokenIssuer, encoded_part, issuer_at, key_server, replace_token
from support.waiting import wait_until

pytestmark = pytest.mark.system

ADMIN = need_of("access", "cluster")
WRITE = need_of("write", "topic", TOPIC)
FILE = "issuer.json"


@pytest.fixture(scope="module")
def issuer() -> TokenIssuer:
    return TokenIssuer()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, issuer: TokenIssuer) -> Iterator[LocalCluster]:
    """A cluster that has the keys of the issuer in a file, and logs all that is ever logged."""
    folder = tmp_path_factory.mktemp("tokens")
    options = {"metrics": "127.0.0.1:0", "log_level": "debug", "log_format": "json"}
    with LocalCluster(
        brokers=1, data_dir=folder, secure=True, broker_options=options, nameserver_options=options
    ) as cluster:
        (folder / "secrets" / "server" / FILE).write_bytes(issuer.key_set())
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic(TOPIC, queues=2)
            admin.add_issuer("k8s", issuer_at(FILE))
        yield cluster
    logged = b"".join(path.read_bytes() for path in folder.rglob("*.log"))
    assert b"issuer k8s added" in logged
    assert not any(signature.encode() in logged for signature in issuer.signatures)


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


class Holder:
    """Whoever has a token in a file.

    Attributes:
        path: of that file.
        text: of the credentials, which name it.
    """

    def __init__(self, admin: Admin, folder: Path, token: str) -> None:
        self.path = folder / "own.token"
        self.path.write_text(token)
        self.text = admin.token_credentials(str(self.path))

    @property
    def credentials(self) -> Credentials:
        return Credentials.from_text(self.text)


NewHolder = Callable[[str], Holder]


@pytest.fixture
def holder(admin: Admin, tmp_path: Path) -> NewHolder:
    """Return whoever has a token."""
    return lambda token: Holder(admin, tmp_path, token)


def test_a_user_of_an_issuer_needs_no_secret_and_has_the_rights_that_it_is_given(
    admin: Admin, issuer: TokenIssuer, holder: NewHolder
) -> None:
    user, own = "k8s:shop:checkout", holder(issuer.sign("shop:checkout"))
    assert own.text.count("secret") == 0
    with Admin(credentials=own.credentials) as asking:
        assert asking.own_rights([WRITE, ADMIN]) == (user, frozenset())
        with pytest.raises(AccessDenied, match=f"`minimq user allow {user} --write {TOPIC}`"):
            asking.route(TOPIC)
        admin.add_rules(user, RULES)
        assert asking.own_rights([WRITE, ADMIN]) == (user, frozenset({WRITE}))
    with Producer(credentials=own.credentials) as producer:
        producer.send(Message(TOPIC, b"x"))
    with PullConsumer(credentials=own.credentials, group="g-k8s", start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        wait_until(lambda: consumer.poll(0.2), PATIENCE_S, what="it reads")
    assert admin.can(user, "write", "topic", TOPIC).reason == f"allow write topic {TOPIC} (user {user})"
    with pytest.raises(InvalidArgument, match="tokens of issuer k8s instead of keys"):
        admin.rotate_user(user)


def test_roles_are_those_of_the_issuer_and_of_a_claim(admin: Admin, issuer: TokenIssuer, holder: NewHolder) -> None:
    with key_server(issuer.key_set()) as keys:
        roles = {"roles": ("admin",)}
        admin.add_issuer("k8s", issuer_at(keys.url, role_claim="groups", claimed_roles={"ops": "admin"}), replaces=True)
        try:
            with Admin(credentials=holder(issuer.sign(groups=["dev"])).credentials) as asking:
                assert asking.own_rights([ADMIN])[1] == frozenset()
            with Admin(credentials=holder(issuer.sign(groups=["dev", "ops"])).credentials) as asking:
                assert asking.own_rights([ADMIN])[1] == {ADMIN}
                admin.add_issuer("k8s", issuer_at(keys.url, role_claim="groups"), replaces=True)
                assert asking.own_rights([ADMIN])[1] == frozenset()  # the same token gives less at once
                admin.add_issuer("k8s", issuer_at(keys.url, role_claim="groups", **roles), replaces=True)
                assert asking.own_rights([ADMIN])[1] == {ADMIN}
                admin.add_rules("k8s:shop:checkout", ["deny access cluster"])
                assert asking.own_rights([ADMIN])[1] == frozenset()
                admin.delete_user("k8s:shop:checkout")
        finally:
            admin.add_issuer("k8s", issuer_at(FILE), replaces=True)


def test_streams_end_with_the_token_of_their_caller(
    secure: LocalCluster, admin: Admin, issuer: TokenIssuer, holder: NewHolder
) -> None:
    lifetime_s = 8.0
    admin.add_rules("k8s:shop:brief", RULES)
    with ExitStack() as opened:
        began = time.monotonic()
        own = Idle(secure, holder(issuer.sign("shop:brief", lifetime_s)).text, "g-brief", opened)
        others = Idle(secure, holder(issuer.sign("shop:brief", 60)).text, "g-long", opened)
        assert own.open() == set(own.streams)
        wait_until(lambda: not own.open(), PATIENCE_S, what="its streams are ended")
        assert own.errors() == {"the token of user k8s:shop:brief is not in force any more: this stream is ended"}
        ends = [stream.ended_at - began for stream in own.streams.values()]
        assert min(ends) > lifetime_s - 1
        assert others.open() == set(others.streams)


@pytest.mark.parametrize("how", ["disabled", "issuer removed", "key withdrawn"])
def test_streams_end_when_their_user_or_its_issuer_is_not_trusted_any_more(
    secure: LocalCluster, admin: Admin, issuer: TokenIssuer, holder: NewHolder, how: str
) -> None:
    user, file = "k8s:shop:live", secure.data_dir / "secrets" / "server" / FILE
    admin.add_rules(user, RULES)
    with ExitStack() as opened:
        holding = holder(issuer.sign("shop:live"))
        own = Idle(secure, holding.text, "g-live", opened)
        text = ""
        if how == "disabled":
            admin.disable_user(user)
            text = f"user {user} is disabled"
        elif how == "issuer removed":
            admin.delete_issuer("k8s")
            text = "not known here"
            assert user not in admin.access().users
        else:
            issuer.new_key(drops_old=True)
            replace_token(file, issuer.key_set().decode())
            text = "was signed by a key that issuer k8s does not have"
        wait_until(lambda: not own.open(), PATIENCE_S, what="its streams are ended")
        with Admin(credentials=holding.credentials) as asking, pytest.raises(NotAuthenticated, match=text):
            asking.own_rights([])
    if how == "disabled":
        admin.enable_user(user)
    elif how == "issuer removed":
        admin.add_issuer("k8s", issuer_at(FILE))


def test_a_token_is_renewed_and_nobody_notices(admin: Admin, issuer: TokenIssuer, holder: NewHolder) -> None:
    admin.add_rules("k8s:shop:brief", RULES)
    lifetime_s, read = 4.0, 0
    own = holder(issuer.sign("shop:brief", lifetime_s))
    sending = Sending(own.credentials)
    with (
        Admin(credentials=own.credentials) as asking,
        PullConsumer(credentials=own.credentials, group="g-brief", start="latest") as consumer,
    ):
        consumer.subscribe(TOPIC)
        for renewed_s in (lifetime_s, 60.0, None):
            until = time.monotonic() + lifetime_s / 2
            while time.monotonic() < until:
                read += len(consumer.poll(0.1))
            if renewed_s is not None:
                replace_token(own.path, issuer.sign("shop:brief", renewed_s))
        before, over = read, time.monotonic() + 1  # all but the last one have expired then
        while read == before or time.monotonic() < over:
            read += len(consumer.poll(0.1))
        assert asking.own_rights([WRITE]) == ("k8s:shop:brief", frozenset({WRITE}))
    wait_until(lambda before=sending.sent: sending.sent > before, PATIENCE_S, what="it sends")  # type: ignore[misc]
    sending.stop()
    assert sending.error is None


def test_the_keys_of_an_issuer_are_replaced_without_a_failed_send(admin: Admin, holder: NewHolder) -> None:
    other = TokenIssuer("RS256")
    who: dict[str, Any] = {"iss": "https://sso.example.org"}
    with key_server(other.key_set()) as keys:
        admin.add_issuer("sso", replace(issuer_at(keys.url), issuer=who["iss"]))
        admin.add_rules("sso:shop:checkout", RULES)
        own = holder(other.sign(**who))
        sending = Sending(own.credentials)
        wait_until(lambda: sending.sent, PATIENCE_S, what="it sends")
        asked = keys.asked
        other.new_key("EdDSA", drops_old=True)
        keys.show(other.key_set())
        replace_token(own.path, other.sign(**who))
        with Producer(credentials=own.credentials, send_timeout_s=PATIENCE_S) as producer:
            producer.send(Message(TOPIC, b"x"))  # its key is fetched meanwhile, and the streams of the other one end
        assert keys.asked >= asked + 2  # by the broker and the name server
        wait_until(lambda before=sending.sent: sending.sent > before, PATIENCE_S, what="it sends")  # type: ignore[misc]
        keys.show(b"out of order", 500)
        with (
            Admin(credentials=holder(TokenIssuer().sign(**who)).credentials, timeout_s=20.0) as asking,
            pytest.raises(Unavailable),
        ):
            asking.own_rights([])
        assert keys.asked > asked
        with Admin(credentials=holder(other.sign(**who)).credentials) as asking:
            assert asking.own_rights([])[0] == "sso:shop:checkout"  # the keys that are known stay
        sending.stop()
        assert sending.error is None
        admin.delete_issuer("sso")


def forged(token: str, header: Mapping[str, object], key: bytes = b"") -> str:
    """Return a token with the claims of another one, and a header and a signature of an attacker."""
    signed = f"{encoded_part(json.dumps(header).encode())}.{token.split('.')[1]}"
    signature = hmac.digest(key, signed.encode(), sha256) if key else b""
    return f"{signed}.{encoded_part(signature)}"


def test_what_is_no_good_token_is_refused_with_the_reason_and_not_shown(
    secure: LocalCluster, issuer: TokenIssuer, holder: NewHolder, tmp_path: Path
) -> None:
    good, stranger = issuer.sign(), TokenIssuer()
    stranger.keys[issuer.newest] = stranger.keys[stranger.newest]
    of_us = {"alg": "ES256", "kid": issuer.newest}
    tokens = {
        "token-algorithm": [
            forged(good, {**of_us, "alg": "none"}),
            forged(good, {**of_us, "alg": "HS256"}, issuer.public_pem()),
            forged(good, {**of_us, "alg": "RS256"}, b"x"),
        ],
        "token-signature": [
            stranger.sign(key_id=issuer.newest),
            forged(good, of_us, issuer.public_pem()),
            f"{good.rpartition('.')[0]}.{encoded_part(bytes(64))}",
            f"{good.split('.')[0]}.{issuer.sign('shop:other').split('.')[1]}.{good.split('.')[2]}",
        ],
        "token-key": [stranger.sign()],
        "token-malformed": [
            issuer.sign(headers={"kid": None}),
            forged(good, {**of_us, "crit": ["exp"]}),
            issuer.sign(exp=None),
            issuer.sign(exp="tomorrow"),
            issuer.sign(iss=None),
            f"{encoded_part(b'{')}.{encoded_part(b'{}')}.",
        ],
        "token-audience": [issuer.sign(aud="other"), issuer.sign(aud=["a", "b"]), issuer.sign(aud=None)],
        "token-issuer": [issuer.sign(iss="https://login.example.org/")],
        "token-expired": [issuer.sign(lifetime_s=-1)],
        "token-early": [issuer.sign(nbf=time.time() + 600)],
        "token-user": [
            *(issuer.sign(sub=sub) for sub in (None, "admin", "system:serviceaccount:", "system:serviceaccount:a b")),
            *(issuer.sign(f"shop:{odd}") for odd in ("*", "${user}", "%servers", "a\nb", "x" * 300)),
        ],
    }
    before = refused_at(secure, tmp_path)
    with Admin(credentials=holder(good).credentials) as asking:
        assert asking.own_rights([])[0] == "k8s:shop:checkout"
    for reason, examples in tokens.items():
        for token in examples:
            with Admin(credentials=holder(token).credentials) as asking:
                with pytest.raises(NotAuthenticated) as raised:
                    asking.own_rights([])
                assert not any(len(each) > 20 and each in str(raised.value) for each in token.split("."))
        counted = refused_at(secure, tmp_path).get(reason, 0) - before.get(reason, 0)
        assert counted == len(examples), reason


def refused_at(secure: LocalCluster, folder: Path) -> dict[str, float]:
    """Return the callers that a name server has refused, by the reason."""
    text = scrape(metrics_address(secure.nameservers[0].log_path), trust_of(secure.credentials), folder)
    return {
        sample.labels["reason"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "minimq_nameserver_unauthenticated_total"
    }
