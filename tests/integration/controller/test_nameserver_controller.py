"""The controller of a name server: what a kill -9 leaves behind, and how it is started."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest

from minimq_broker.replication.controller import parse
from minimq_common.errors import BrokerConflict, InvalidArgument, Unavailable
from support.controller_process import ControllerProcess
from support.loop_thread import LoopThread
from support.nameserver_client import NameServerClient
from support.process import process
from support.reporter import LEASE_S, StartReporter
from support.reports import report
from support.waiting import wait_until


def test_of_two_processes_with_one_id_the_second_is_listed_as_a_conflict(
    own_nameserver: ControllerProcess, start: StartReporter, broker_name: str
) -> None:
    first = start(own_nameserver.address, 0)
    wait_until(lambda: first.is_master)
    with contextlib.closing(NameServerClient(own_nameserver.address)) as link:
        assert link.conflicts() == []
        second = start(own_nameserver.address, 0, run=77, address="second:1")
        [conflict] = wait_until(link.conflicts, 20)
        assert (conflict.cluster, conflict.broker_name, conflict.broker_id) == ("default", broker_name, 0)
        assert (conflict.address, conflict.holder_address) == ("second:1", first.report.address)
        assert "give one of them another --id" in conflict.reason
        assert all(isinstance(error, BrokerConflict) for error in second.errors)
        assert not second.led


@pytest.mark.fault
def test_decisions_survive_a_kill_and_the_master_goes_on_in_its_term(
    own_nameserver: ControllerProcess, start: StartReporter
) -> None:
    master = start(own_nameserver.address, 0)
    wait_until(lambda: master.is_master)
    slave = start(own_nameserver.address, 1)
    wait_until(lambda: master.record and master.record.addresses.keys() == {0, 1})
    for in_sync in ({0, 1}, {0}, {0, 1}):
        decided = master.join(*in_sync)
        own_nameserver.kill()
        own_nameserver.start()
        since = time.monotonic()
        for replica in (master, slave):
            wait_until(lambda replica=replica, since=since: replica.answered_at > since, 20)  # type: ignore[misc]
            assert replica.answer == decided
        wait_until(lambda since=since: master.lease_until > since + LEASE_S, 20)  # type: ignore[misc]
    assert any(isinstance(error, Unavailable) for error in master.errors)
    assert master.led.keys() == {1}


@pytest.mark.fault
def test_after_a_start_the_former_lease_is_waited_for(own_nameserver: ControllerProcess, start: StartReporter) -> None:
    master = start(own_nameserver.address, 0)
    wait_until(lambda: master.is_master)
    slave = start(own_nameserver.address, 1)
    wait_until(lambda: master.record and master.record.addresses.keys() == {0, 1})
    master.join(0, 1)
    own_nameserver.kill()
    master.fall_silent()
    own_nameserver.start()
    started_at = time.monotonic() - 0.5  # it counts from before it was ready, by less than that
    wait_until(lambda: slave.is_master, 20)
    assert slave.led[2] > started_at + LEASE_S
    assert slave.led[2] > master.lease_until


@pytest.mark.fault
def test_no_term_is_given_twice_over_many_kills(own_nameserver: ControllerProcess, start: StartReporter) -> None:
    replica = start(own_nameserver.address, 0)
    wait_until(lambda: 1 in replica.led)
    for term in range(1, 4):
        own_nameserver.kill()
        until = replica.lease_until
        replica.restart()
        own_nameserver.start()
        wait_until(lambda term=term: term + 1 in replica.led, 20)  # type: ignore[misc]
        assert replica.led[term + 1] > until
    assert list(replica.led) == [1, 2, 3, 4]


def test_a_name_server_without_a_directory_is_no_controller(loop: LoopThread) -> None:
    with process(sys.executable, "-m", "minimq_nameserver", "--listen", "127.0.0.1:0") as nameserver:
        assert nameserver.stdout is not None
        controller = parse(nameserver.stdout.readline().split()[-1])
        with pytest.raises(InvalidArgument, match="is no controller: start it with --controller-dir DIR"):
            loop.run(controller.report(report()))
        loop.run(controller.close())


def test_two_controllers_do_not_share_a_directory(tmp_path: Path) -> None:
    with ControllerProcess(tmp_path, LEASE_S):
        command = (sys.executable, "-m", "minimq_nameserver", "--listen", "127.0.0.1:0")
        with process(*command, "--controller-dir", str(tmp_path)) as second:
            _, errors = second.communicate(timeout=60)
            assert second.returncode == 1
            assert f"{tmp_path} is in use by another controller" in errors


def test_a_damaged_file_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "decisions.json").write_bytes(b"not a database" * 1000)
    command = (sys.executable, "-m", "minimq_nameserver", "--listen", "127.0.0.1:0")
    with process(*command, "--controller-dir", str(tmp_path)) as nameserver:
        _, errors = nameserver.communicate(timeout=60)
        assert nameserver.returncode == 1
        assert "error: " in errors
        assert str(tmp_path / "decisions.json") in errors


def test_a_controller_that_is_not_there_is_unavailable(loop: LoopThread) -> None:
    controller = parse("127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"controller 127\.0\.0\.1:1 is not reached: nothing listens there"):
        loop.run(controller.report(report()))
    loop.run(controller.close())


@pytest.mark.parametrize("text", ["nowhere", "a:1,b:2", "zookeeper://a:1", "etcd://", "etcd://a:1,nowhere"])
def test_what_names_no_controller_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse(text)


def test_of_two_processes_with_one_id_the_first_is_heard(nameserver: ControllerProcess, start: StartReporter) -> None:
    master = start(nameserver.address, 0)
    wait_until(lambda: master.is_master)
    slave = start(nameserver.address, 1)
    record = wait_until(lambda: slave.record)
    second = start(nameserver.address, 1, run=77, address="127.0.0.1:1")
    wait_until(lambda: second.errors)
    assert {type(error) for error in second.errors} == {BrokerConflict}
    assert f"is at {slave.report.address}, but 127.0.0.1:1 says" in str(second.errors[0])
    assert record
    assert master.record
    assert master.record.addresses[1] == slave.report.address
    slave.fall_silent()
    wait_until(lambda: second.record, 20)
    wait_until(lambda: master.record and master.record.addresses[1] == "127.0.0.1:1")
