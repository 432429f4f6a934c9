"""Every call of every server with every kind of key: who lacks the right is rejected, and nothing has changed then."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from minimq import Admin, Credentials, LocalCluster
from minimq.local.certificate_authority import CertificateAuthority
from minimq_common.errors import AccessDenied, MinimqError, NotAuthenticated
from minimq_common.security.access_rule import Need, Resource
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials import CredentialsArgument
from minimq_common.security.needs import CallAccess, CallerKind, access_of, needs_of
from minimq_common.security.user_key import ID_BYTES, SECRET_BYTES, UserKey, new_key, parse_key
from minimq_common.wire import rpc
from minimq_proto.v1 import broker_pb2, work_queues_pb2
from support.bounds import bounds_of
from support.protocol import METHODS, call_of, is_of_nameserver
from support.secure_scraping import trust_of
from support.users import Users
from support.waiting import wait_until

TIMEOUT_S = 60.0
MARK = "mark"

pytestmark = pytest.mark.system

Answers = list[Any]


class Call(NamedTuple):
    """A call with one request."""

    address: str
    method: MethodDescriptor
    request: Message

    def __str__(self) -> str:
        return f"{self.method.full_name}({self.request})"

    @property
    def access(self) -> CallAccess:
        return access_of(self.method)

    @property
    def kind(self) -> CallerKind:
        return self.access.kind

    @property
    def needs(self) -> tuple[Need, ...]:
        own = () if self.access.need is None else (self.access.need,)
        return (*own, *needs_of(self.request))

    def make(self, channel: Any) -> Answers:
        """Return the answers, of which the last one is the error that ended the call, if one did."""
        method = self.method
        call = call_of(channel, method)
        try:
            if not method.server_streaming:
                return [call(self.request, timeout=TIMEOUT_S)]
            stream = call(iter([self.request]) if method.client_streaming else self.request, timeout=TIMEOUT_S)
            found = list(itertools.islice(stream, 1))
            stream.cancel()
        except grpc.RpcError as error:
            return [rpc.from_rpc_error(error, "server")]
        return found


def outcome(answers: Answers) -> type[MinimqError] | None:
    """Return the error that a call was answered with, in band or not."""
    for answer in answers:
        if isinstance(answer, MinimqError):
            return type(answer)
        for failure in failures(answer):
            return type(rpc.from_failure(failure))
    return None


def failures(answer: Any) -> Iterator[Any]:
    parts: dict[type, Any] = {
        broker_pb2.AppendResponse: lambda: answer.results,
        broker_pb2.AtomicAppendResponse: lambda: answer.results,
        work_queues_pb2.PopResponse: lambda: answer.results,
        broker_pb2.PullFrame: lambda: [answer],
        broker_pb2.SessionEvent: lambda: [answer.rejected],
    }
    for part in parts[type(answer)]() if type(answer) in parts else []:
        if part.HasField("failure"):
            yield part.failure


def variants(kind: Descriptor) -> Iterator[Message]:
    """Yield requests of a kind: without parts, with each part, and with all lists."""
    whole = [field for field in kind.fields if field.message_type is not None and not field.is_repeated]
    seen = set()
    for part in (None, *whole):
        request = filled(kind, parts=[part] if part is not None else [])
        if (data := request.SerializeToString()) not in seen:
            seen.add(data)
            yield request


def filled(kind: Descriptor, parts: list[FieldDescriptor] | None = None) -> Any:
    """Return a message whose texts are marks and whose numbers are in their bounds.

    Args:
        kind: of the message.
        parts: messages in it that it is to have; None for the first one of each choice.
    """
    message = message_factory.GetMessageClass(kind)()
    chosen = set()
    for field in kind.fields:
        numbers = bounds_of(field).numbers
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            if field.is_repeated:
                getattr(message, field.name).append(filled(field.message_type))
            elif field in parts if parts is not None else field.containing_oneof not in chosen:
                chosen.add(field.containing_oneof)
                getattr(message, field.name).CopyFrom(filled(field.message_type))
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.containing_oneof is None:
                getattr(message, field.name).append(MARK) if field.is_repeated else setattr(message, field.name, MARK)
        elif numbers is not None and not field.is_repeated and field.containing_oneof is None:
            setattr(message, field.name, numbers[0])
    if isinstance(message, broker_pb2.SetPermissionRequest):
        message.permission = 6  # as it is
    return message


@pytest.fixture(scope="module")
def calls(secure: LocalCluster) -> list[Call]:
    broker, nameserver = secure.brokers[0].address, secure.nameserver
    check: Any = health_pb2.DESCRIPTOR.services_by_name["Health"].methods_by_name["Check"]
    return [
        Call(nameserver if is_of_nameserver(method.containing_service) else broker, method, request)
        for method in (*METHODS, check)
        for request in variants(method.input_type)
    ]


class Keys:
    """Channels to all servers with one key each."""

    def __init__(self, secure: LocalCluster, opened: ExitStack) -> None:
        self._secure = secure
        self._opened = opened

    def of_user(self, text: str) -> dict[str, Any]:
        """Return channels with the key and the certificate in some credentials."""
        return self.channels(key_of(text), Credentials.from_text(text))

    def channels(self, bearer: UserKey | None, own: CredentialsArgument | None = None) -> dict[str, Any]:
        known = trust_of(own or self._secure.credentials)
        trust = Trust(known.roots, known.pair, bearer)
        addresses = (self._secure.nameserver, self._secure.brokers[0].address)
        return {each: self._opened.enter_context(rpc.open_channel(each, trust)) for each in addresses}


@pytest.fixture(scope="module")
def keys(secure: LocalCluster) -> Iterator[Keys]:
    with ExitStack() as opened:
        yield Keys(secure, opened)


@pytest.fixture(scope="module")
def users(secure: LocalCluster) -> Users:
    return Users(secure)


@pytest.fixture(scope="module")
def admin(secure: LocalCluster) -> Iterator[Admin]:
    with Admin(credentials=secure.credentials) as made:
        yield made


def key_of(text: str) -> UserKey:
    found = trust_of(Credentials.from_text(text)).bearer
    assert isinstance(found, UserKey)
    return found


def test_whoever_lacks_a_key_or_a_right_is_rejected_and_changes_nothing(
    secure: LocalCluster, admin: Admin, users: Users, keys: Keys, calls: list[Call]
) -> None:
    assert len(calls) > 45
    expired = key_of(users.add("expired", lifetime_s=1e-3))
    revoked = key_of(users.add("rotated", roles=["admin"]))
    users.rotate("rotated", delete_old=True)
    disabled = key_of(users.add("disabled", roles=["admin"]))
    users.disable("disabled")
    misplaced = keys.channels(key_of(users.add("misplaced", roles=["admin"])))  # beside the certificate of admin
    unknown = {
        "none": None,
        "garbage": UserKey("", "garbage"),
        "wrong": new_key(secrets.token_bytes(ID_BYTES + SECRET_BYTES)),
        "expired": expired,
        "revoked": revoked,
        "disabled": disabled,
    }
    powerless = keys.of_user(users.add("powerless"))
    wait_for_members_to_leave(admin)
    before = state_of(secure, keys)
    for name, bearer in unknown.items():
        channels = keys.channels(bearer)
        for call in calls:
            found = outcome(call.make(channels[call.address]))
            assert (found is NotAuthenticated) == (call.kind is not CallerKind.ANYBODY), (name, str(call), found)
    for call in calls:
        found = outcome(call.make(misplaced[call.address]))
        if call.kind is CallerKind.SERVER:
            assert found in {NotAuthenticated, AccessDenied}, str(call)
        else:
            assert (found is NotAuthenticated) == (call.kind is CallerKind.USER), str(call)
    for call in calls:
        answers = call.make(powerless[call.address])
        if call.method.name == "WatchRoutes":  # what it may not see is left out
            assert answers == []
        else:
            is_rejected = call.kind is CallerKind.SERVER or bool(call.needs)
            assert (outcome(answers) is AccessDenied) == is_rejected, (str(call), answers)
    assert state_of(secure, keys) == before


def wait_for_members_to_leave(admin: Admin) -> None:
    """Wait for the members of earlier tests: their removal, some seconds after their sessions ended, is logged."""
    left = "the members of earlier tests have left"
    wait_until(lambda: not any(group.members for group in admin.describe_groups()), TIMEOUT_S, what=left)


def test_whoever_has_exactly_the_rights_is_served(users: Users, keys: Keys, calls: list[Call]) -> None:
    calls = [call for call in calls if all(need.name or need.resource is Resource.CLUSTER for need in call.needs)]
    rules = {f"allow {need}" for call in calls for need in call.needs}
    entitled = keys.of_user(users.add("entitled", sorted(rules)))
    for call in calls:
        found = outcome(call.make(entitled[call.address]))
        assert (found is AccessDenied) == (call.kind is CallerKind.SERVER), (str(call), found)
        assert found is not NotAuthenticated, str(call)


def test_whoever_lacks_one_of_the_rights_is_rejected_and_changes_nothing(
    secure: LocalCluster, admin: Admin, users: Users, keys: Keys, calls: list[Call]
) -> None:
    needed = {need for call in calls for need in call.needs if need.name or need.resource is Resource.CLUSTER}
    lacking: dict[Need, dict[str, Any]] = {}
    for number, need in enumerate(sorted(needed, key=str)):
        rules = [*(f"allow {other}" for other in needed - {need}), f"deny {need}"]
        user = f"lacks-{number}"
        lacking[need] = keys.of_user(users.add(user, rules))
    wait_for_members_to_leave(admin)
    before = state_of(secure, keys)
    for need, channels in lacking.items():
        for call in calls:
            if need in call.needs:
                answers = call.make(channels[call.address])
                assert outcome(answers) is AccessDenied or (call.method.name == "WatchRoutes" and not answers), (
                    str(need),
                    str(call),
                )
    assert state_of(secure, keys) == before


def test_servers_do_what_servers_do_and_describe_and_no_more(
    keys: Keys, calls: list[Call], authority: CertificateAuthority
) -> None:
    channels = keys.channels(parse_key((authority.server / "cluster.key").read_text().strip()))
    for call in calls:
        found = outcome(call.make(channels[call.address]))
        may = call.kind is not CallerKind.USER or call.access.or_server
        may = may or all(need.verb.value == "describe" for need in call.needs)
        assert (found is AccessDenied) != may, (str(call), found)


def state_of(secure: LocalCluster, keys: Keys) -> tuple[int, bytes, bytes]:
    """Return where the log of the broker ends once all is written, and the routes and brokers of the name server."""
    known = trust_of(secure.credentials)
    channels = keys.channels(known.bearer)
    broker, nameserver = channels[secure.brokers[0].address], channels[secure.nameserver]
    broker.unary_unary("/minimq.v1.Broker/Probe", bytes, bytes)(b"", timeout=TIMEOUT_S)
    status = broker.unary_unary(
        "/minimq.v1.Broker/GetStatus",
        broker_pb2.GetStatusRequest.SerializeToString,
        broker_pb2.GetStatusResponse.FromString,
    )(broker_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
    topics, cluster = (
        nameserver.unary_unary(f"/minimq.v1.NameServer/{name}", bytes, bytes)(b"", timeout=TIMEOUT_S)
        for name in ("GetRoutes", "GetCluster")
    )
    return status.log_end, topics, cluster
