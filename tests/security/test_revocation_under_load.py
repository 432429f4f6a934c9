"""A user who sends 20,000 messages a second and keeps all streams open is out, at every broker, within a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from minimq import Admin, Credentials, LocalCluster
from support.live_user import QUEUES, RULES, TIMEOUT_S, TOPIC, Idle, Sending, stubs, written_messages
from support.users import Users
from support.waiting import wait_until

PER_SECOND = 20_000
#: A topic that nothing is sent to, whose long polls wait.
QUIET = "quiet"
ALL_RULES = [*RULES, *(rule.replace(TOPIC, QUIET) for rule in RULES if TOPIC in rule)]
#: Within this time after a change was acknowledged it is in force at all servers, as docs/security.md promises.
PROMISE_S = 1.0
#: For so long nothing more may be stored.
LATER_S = 3.0

NOT_IN_FORCE = "the key of user {} is not in force any more: this stream is ended"
CHANGED = "the rights of user {} have changed: reopen this stream"

pytestmark = [pytest.mark.system, pytest.mark.long]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers and two name servers: all read one file."""
    folder = tmp_path_factory.mktemp("two")
    with LocalCluster(brokers=2, nameservers=2, data_dir=folder, secure=True) as cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
            admin.create_topic(QUIET, queues=QUEUES)
        yield cluster


def rotate(users: Users, user: str) -> None:
    users.rotate(user, delete_old=True)


def take_all_rights(users: Users, user: str) -> None:
    users.delete_rules(user, *ALL_RULES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(Users.disable, NOT_IN_FORCE, id="disabled"),
        pytest.param(Users.remove, NOT_IN_FORCE, id="removed"),
        pytest.param(rotate, NOT_IN_FORCE, id="rotated"),
        pytest.param(take_all_rights, CHANGED, id="powerless"),
    ],
)
def test_a_second_after_the_change_nothing_is_stored_and_no_stream_is_open(
    two: LocalCluster, change: Callable[[Users, str], object], reason: str, request: pytest.FixtureRequest
) -> None:
    live = f"live-{request.node.callspec.id}"
    users = Users(two)
    with ExitStack() as opened:
        numbers = range(len(two.brokers))
        administrators = [stubs(two, two.credentials, opened, number)[0] for number in numbers]
        text = users.add(live, ALL_RULES)
        own = [Idle(two, text, f"g-{live}-{number}", opened, QUIET, number) for number in numbers]
        beside = Idle(two, users.add(f"beside-{live}", ALL_RULES), f"g-beside-{live}", opened, QUIET)
        streams = {f"{name} {number}": each for number in numbers for name, each in own[number].streams.items()}
        before = sum(written_messages(stub) for stub in administrators)
        sending = Sending(Credentials.from_text(text), PER_SECOND)
        wait_until(lambda: sending.rate >= 0.95 * PER_SECOND, TIMEOUT_S, what="it sends at its rate")
        rate = sending.rate
        assert all(stream.is_open for stream in streams.values())
        change(users, live)  # it returns when all servers have read the file
        changed_at = time.monotonic()
        time.sleep(PROMISE_S)
        stored = [written_messages(stub) for stub in administrators]
        assert [name for name, stream in streams.items() if stream.is_open] == []
        assert {str(stream.error) for stream in streams.values()} == {reason.format(live)}
        time.sleep(LATER_S)
        assert [written_messages(stub) for stub in administrators] == stored
        sending.join()
        assert sending.error is not None
        assert sending.sent <= sum(stored) - before
        assert beside.open() == set(beside.streams)
        last_s = max(stream.ended_at for stream in streams.values()) - changed_at
        print(f"{rate:,.0f} messages/s; the last of {len(streams)} streams ended after {last_s:.3f} s; {sending.error}")
