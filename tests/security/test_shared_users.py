"""Users and rules of a running cluster: all servers come to the same, and stay there over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minimq import Admin, Credentials, LocalCluster, Message, Producer, PullConsumer
from minimq.admin.access_folder import AccessFolder
from minimq.errors import AccessConflict, AccessDenied, InvalidArgument, MinimqError
from minimq_cli.main import main
from minimq_common.security.credentials_file import CredentialsFile
from minimq_proto.v1 import broker_pb2
from support.waiting import wait_until

TIMEOUT_S = 60.0

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers, and two name servers, which know of each other's news by brokers alone."""
    with LocalCluster(brokers=2, nameservers=2, data_dir=tmp_path_factory.mktemp("two"), secure=True) as cluster:
        yield cluster


def run(cluster: LocalCluster, *arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(main, ["--credentials", str(cluster.credentials), *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def versions(admin: Admin) -> set[tuple[int, str] | str]:
    return {each.error or (each.version, each.digest) for each in admin.access_status()}


def test_the_commands_change_all_servers(two: LocalCluster, tmp_path: Path) -> None:
    text = run(two, "user", "add", "alice", "--read", "orders*").stdout
    opened = CredentialsFile(Credentials.from_text(text))
    assert opened.nameservers == CredentialsFile(Credentials(str(two.credentials))).nameservers
    assert opened.trust().bearer is not None
    with Admin(credentials=two.credentials) as admin:
        version = admin.access().version
        assert len(versions(admin)) == 1  # the command returns when it is in force everywhere
        assert admin.can("alice", "read", "topic", "orders").allowed
        run(two, "user", "deny", "alice", "--read", "orders")
        assert not admin.can("alice", "read", "topic", "orders").allowed
        assert admin.access().version == version + 1
    asked = ("can", "alice", "read", "topic", "orders")
    assert "no: deny read topic orders (user alice)" in run(two, *asked, status=1).stdout
    shown = run(two, "access", "describe").stdout
    file = tmp_path / "access.toml"
    file.write_text(shown)
    assert "give it a larger version" in run(two, "access", "apply", file, status=2).stderr
    file.write_text(shown.replace(f"version = {version + 1}", f"version = {version + 100}"))
    run(two, "access", "apply", file)
    found = json.loads(run(two, "access", "status", "--output", "json").stdout)
    assert [each["version"] for each in found] == [version + 100] * 4
    assert [each["server"].partition(" ")[0] for each in found] == ["name", "name", "broker-a", "broker-b"]
    run(two, "user", "delete", "alice")
    assert "alice" not in run(two, "user", "list").stdout


def test_a_user_may_do_what_the_rules_say_and_no_more_than_that_for_long(two: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "eve.minimq"
    run(two, "topic", "create", "orders", "--queues", "1")
    run(two, "user", "add", "eve", "--write", "orders", "--to", file)
    with Producer(credentials=file) as producer:
        queue = producer.send(Message("orders", b"allowed")).queue
        with PullConsumer(credentials=file) as consumer:
            consumer.assign([queue])
            with pytest.raises(AccessDenied) as denied:
                consumer.poll(TIMEOUT_S)
        assert "`minimq user allow eve --read orders`" in denied.value.message
        run(two, "user", "allow", "eve", "--read", "orders")
        with PullConsumer(credentials=file) as consumer:
            consumer.assign([queue])
            assert [message.body for message in consumer.poll(TIMEOUT_S)] == [b"allowed"]
        run(two, "user", "rotate", "eve", "--delete-old", "--to", tmp_path / "later.minimq")
        with pytest.raises(MinimqError) as ended:
            producer.send(Message("orders", b"too late"))
        assert "the key in these credentials is not known here, or no longer" in str(ended.value)
    with Producer(credentials=tmp_path / "later.minimq") as producer:
        producer.send(Message("orders", b"again"))


def test_a_change_of_the_file_reaches_all_servers_if_its_version_is_larger(two: LocalCluster) -> None:
    file = AccessFolder(two.data_dir / "secrets")
    with Admin(credentials=two.credentials) as admin:
        if admin.access().version == 1:
            run(two, "user", "add", "bob")
        in_force = admin.access().version
        later = file.add_rules("admin", ["allow read topic of-the-file"])
        assert later.version < in_force + 1
        wait_until(
            lambda: all("the file is not in force" in server.log_path.read_text() for server in two.nameservers),
            TIMEOUT_S,
            what="the servers complain",
        )
        assert admin.access().version == in_force
        while later.version <= in_force:
            later = file.change_access(lambda document: document)
        wait_until(lambda: versions(admin) == {(later.version, later.digest)}, TIMEOUT_S, what="all follow the file")


def test_of_two_changes_at_once_one_is_told_to_look_again(two: LocalCluster) -> None:
    with Admin(credentials=two.credentials) as admin:
        document = admin.access()
        request = broker_pb2.SetAccessRequest(expected_version=document.version - 1, document=document.encoded())
        with pytest.raises(AccessConflict, match="somebody else has changed them"):
            admin._client.call(two.brokers[0].address, lambda stub: stub.SetAccess, request)
        request.expected_version = document.version
        with pytest.raises(InvalidArgument, match="must be above the former one"):
            admin._client.call(two.brokers[0].address, lambda stub: stub.SetAccess, request)
        assert admin.access() == document


@pytest.mark.fault
def test_the_newest_users_outlive_the_restart_of_all_servers(two: LocalCluster) -> None:
    run(two, "user", "add", "carol")
    with Admin(credentials=two.credentials) as admin:
        before = admin.access()
    for server in (*two.brokers, *two.nameservers):
        server.kill()
    for server in (*two.nameservers, *two.brokers):  # each begins with the file, which is older
        server.start()
    with Admin(credentials=two.credentials) as admin:
        wait_until(lambda: versions(admin) == {(before.version, before.digest)}, TIMEOUT_S, what="all have it again")
        assert admin.access() == before


def test_who_slept_through_a_change_learns_of_it(two: LocalCluster) -> None:
    two.brokers[1].stop()
    two.nameservers[1].stop()
    run(two, "user", "add", "dave")
    two.nameservers[1].start()
    two.brokers[1].start()
    with Admin(credentials=two.credentials) as admin:
        wait_until(lambda: len(versions(admin)) == 1, TIMEOUT_S, what="all have the same")
        assert "dave" in admin.access().users


def test_a_cluster_without_access_control_says_so(cluster: LocalCluster) -> None:
    with Admin(cluster.nameserver) as admin:
        with pytest.raises(InvalidArgument, match="start its servers with --secrets DIR"):
            admin.access()
        assert {(each.version, each.error) for each in admin.access_status()} == {(0, None)}
