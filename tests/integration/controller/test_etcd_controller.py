"""A controller in etcd, while members of it die."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minimq_broker.replication.controller import parse
from minimq_broker.replication.etcd_controller import EtcdLink, EtcdView
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.replicas.election import elect
from support.etcd_cluster import MEMBERS, EtcdCluster, etcd_cluster
from support.loop_thread import LoopThread
from support.reporter import LEASE_S, Reporter, StartReporter
from support.reports import report
from support.waiting import wait_until


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def pair(own_etcd: EtcdCluster, start: StartReporter) -> tuple[Reporter, Reporter]:
    """A master, and a slave in sync."""
    master = start(own_etcd.option, 0)
    wait_until(lambda: master.is_master, 20)
    slave = start(own_etcd.option, 1)
    wait_until(lambda: master.record and master.record.addresses.keys() == {0, 1}, 20)
    joined = master.join(0, 1)
    wait_until(lambda: slave.record == joined, 20)
    return master, slave


def change_masters(master: Reporter, slave: Reporter) -> None:
    """Let the master fall silent until the slave leads, and let it follow then."""
    assert master.record is not None
    term = master.record.term
    master.fall_silent()
    wait_until(lambda: slave.is_master, 20)
    assert slave.record is not None
    assert slave.record.term > term
    assert max(slave.led.values()) > master.lease_until
    master.start()
    wait_until(lambda: master.record and slave.record and master.record.term == slave.record.term, 20)
    slave.join(0, 1)


@pytest.mark.fault
def test_the_loss_of_any_one_member_is_borne(own_etcd: EtcdCluster, pair: tuple[Reporter, Reporter]) -> None:
    master, slave = pair
    for number in range(MEMBERS):
        own_etcd.kill(number)
        wait_until(lambda: own_etcd.leader() is not None, 20)
        change_masters(master, slave)
        master, slave = slave, master
        own_etcd.start(number)


@pytest.mark.fault
@pytest.mark.parametrize("how", ["killed", "hanging"])
def test_a_new_leader_of_etcd_changes_nothing(own_etcd: EtcdCluster, pair: tuple[Reporter, Reporter], how: str) -> None:
    master, slave = pair
    leader = own_etcd.leader()
    assert leader is not None
    if how == "killed":
        own_etcd.kill(leader)
    else:
        own_etcd.pause(leader)
    since = time.monotonic()
    wait_until(lambda: slave.led or master.lease_until > since + LEASE_S, 20)
    # Whether the lease of the master ran out meanwhile or not, there is one now, and there were never two.
    change_masters(*(slave, master) if slave.led else (master, slave))
    assert not master.led.keys() & slave.led.keys()


@pytest.mark.fault
def test_without_a_majority_nobody_leads_and_with_it_the_master_goes_on(
    own_etcd: EtcdCluster, pair: tuple[Reporter, Reporter]
) -> None:
    master, slave = pair
    own_etcd.kill(0)
    own_etcd.kill(1)
    wait_until(lambda: not master.is_master, 20)
    wait_until(lambda: any(isinstance(error, Unavailable) for error in slave.errors), 20)
    own_etcd.start(0)
    wait_until(lambda: master.is_master or slave.is_master, 20)
    assert not master.led.keys() & slave.led.keys()


def test_an_election_fails_if_the_master_has_reported_since(
    etcd: EtcdCluster, broker_name: str, start: StartReporter, loop: LoopThread
) -> None:
    """The last moment of its lease: whoever elects has not seen the report yet."""
    master = start(etcd.option)
    wait_until(lambda: master.is_master, 20)
    master.fall_silent()
    link = EtcdLink(etcd.endpoints, 5.0)
    view = EtcdView(link, master.report.key, LEASE_S)
    loop.run(view.look())
    elected = elect(view.existing(), [report(broker_name=broker_name, run=7, last_term=1)])
    assert elected is not None
    loop.run(master.controller.report(master.report))
    assert not loop.run(view.replace(elected, unless_heard=0))
    assert loop.run(view.replace(elected, unless_heard=0))  # now it has seen the report
    loop.run(link.close())


def test_a_report_of_before_the_first_look_shows_nobody_alive(
    own_etcd: EtcdCluster, pair: tuple[Reporter, Reporter], loop: LoopThread
) -> None:
    """Keys stay when a replica has gone: who has just started does not elect it."""
    master, slave = pair
    slave.fall_silent()
    since = time.monotonic()
    wait_until(lambda: master.is_master and master.answered_at > since)  # nobody is left who could elect another one
    master.fall_silent()
    newcomer = parse(own_etcd.option, term_lease_s=LEASE_S)
    answer = loop.run(newcomer.report(replace(master.report, resigns=True)))
    loop.run(newcomer.close())
    assert answer == master.record


def test_an_etcd_that_is_not_there_is_unavailable(loop: LoopThread) -> None:
    controller = parse("etcd://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(Unavailable, match=r"etcd at 127\.0\.0\.1:1, 127\.0\.0\.1:2 does not answer: nothing listens"):
        loop.run(controller.report(report()))
    loop.run(controller.close())


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aetcd", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'minimq\[etcd\]'"):
        parse("etcd://127.0.0.1:2379")


def test_an_unclean_promotion_is_an_error_and_a_clean_one_is_not(
    etcd: EtcdCluster, start: StartReporter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    master = start(etcd.option, 0)
    wait_until(lambda: master.is_master, 20)
    slave = start(etcd.option, 1)
    wait_until(lambda: master.record and master.record.addresses.keys() == {0, 1}, 20)
    for _ in range(2):  # the second one changes nothing
        slave.promote(unclean=True)
    [unclean] = [record for record in caplog.records if "promotion" in record.getMessage()]
    name = slave.report.broker_name
    assert unclean.levelname == "ERROR"
    assert re.search(rf"unclean promotion.* broker={name} cluster=\S+ to=1 term=1 in_sync=\[0\]$", unclean.getMessage())
    wait_until(lambda: slave.is_master and slave.record == master.record, 20)
    slave.join(0, 1)
    wait_until(lambda: master.record == slave.record and master.answered and master.answered.last_term == 2, 20)
    caplog.clear()
    master.promote()
    [clean] = [record for record in caplog.records if "promotion" in record.getMessage()]
    assert (clean.levelname, "unclean" in clean.getMessage()) == ("INFO", False)
