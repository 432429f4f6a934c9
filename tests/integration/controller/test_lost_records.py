"""A controller that loses its records, or is put back to an old copy of them, below replicas that live."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.controller_process import ControllerProcess
from support.etcd_cluster import etcd_cluster
from support.reporter import LEASE_S, Reporter, StartReporter
from support.waiting import wait_until

TIMEOUT_S = 30.0


@dataclass
class Authority:
    """A controller of either kind, and what it has on disk."""

    directory: Path
    option: Callable[[], str]
    start: Callable[[], None]
    kill: Callable[[], None]

    def save(self) -> None:
        """Keep a copy of what it has on disk now."""
        self.kill()
        shutil.copytree(self.directory, self._copy)
        self.start()

    def put_back(self, *, copy: bool) -> None:
        """Give it the copy, or nothing, in place of what it has."""
        self.kill()
        shutil.rmtree(self.directory)
        if copy:
            shutil.copytree(self._copy, self.directory)
        else:
            self.directory.mkdir()
        self.start()

    @property
    def _copy(self) -> Path:
        return self.directory.with_name("copy")


@pytest.fixture(params=["nameserver", "etcd"])
def authority(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Authority]:
    directory = tmp_path / "authority"
    directory.mkdir()
    with contextlib.ExitStack() as stack:
        if request.param == "nameserver":
            server = stack.enter_context(ControllerProcess(directory, LEASE_S))
            yield Authority(directory, lambda: server.address, server.start, server.kill)
        else:
            etcd = stack.enter_context(etcd_cluster(directory))
            yield Authority(directory, lambda: etcd.option, etcd.start, etcd.stop)


def saved_alone(authority: Authority, start: StartReporter, **other: Any) -> tuple[Reporter, Reporter]:
    """Start two replicas, save what is recorded while the master is alone in its set, and let the slave join then."""
    master = start(authority.option(), 0, **other)
    wait_until(lambda: master.is_master, TIMEOUT_S)
    slave = start(authority.option(), 1, **other)
    wait_until(lambda: master.record and master.record.addresses.keys() == {0, 1}, TIMEOUT_S)
    authority.save()
    since = time.monotonic()
    for each in (master, slave):
        wait_until(lambda each=each: each.answered_at > since, TIMEOUT_S)  # type: ignore[misc]
    wait_until(lambda: master.is_master, TIMEOUT_S)
    joined = master.join(0, 1)
    wait_until(lambda: slave.record == joined and slave.answered and slave.answered.last_term == joined.term)
    return master, slave


@pytest.mark.fault
def test_an_old_copy_that_knows_the_master_is_mended_and_the_master_goes_on(
    authority: Authority, start: StartReporter
) -> None:
    master, slave = saved_alone(authority, start)
    assert master.record is not None
    known = master.record
    authority.put_back(copy=True)
    since = time.monotonic()
    wait_until(lambda: slave.record and slave.record.number > known.number, TIMEOUT_S)
    wait_until(lambda: master.is_master and master.answered_at > since, TIMEOUT_S)  # not by the lease of before
    assert master.led.keys() == {1}
    assert set(master.join(0, 1).in_sync) == {0, 1}
    master.fall_silent()
    wait_until(lambda: slave.is_master, TIMEOUT_S)  # it is in sync again
    assert not slave.led.keys() & master.led.keys()
    assert max(slave.led.values()) > master.lease_until


@pytest.mark.fault
@pytest.mark.parametrize(
    "copy", [pytest.param(True, id="old copy"), pytest.param(False, marks=pytest.mark.long, id="emptied")]
)
def test_a_former_master_and_who_was_not_in_sync_are_not_elected(
    authority: Authority, start: StartReporter, *, copy: bool
) -> None:
    former, master = saved_alone(authority, start)
    former.fall_silent()
    wait_until(lambda: master.is_master, TIMEOUT_S)
    stranger = start(authority.option(), 2, last_term=2, log_end=1 << 40)
    wait_until(lambda: stranger.record)
    authority.put_back(copy=copy)
    # A new process knows nothing but what it finds, and has a log of the former term.
    again = start(authority.option(), 0, run=50, last_term=1)
    until = master.lease_until
    wait_until(lambda: max(master.led) > 2, TIMEOUT_S, what="the master leads a new term")
    assert master.led[max(master.led)] > until
    assert not again.led.keys() | stranger.led.keys()
    assert master.record is not None
    assert (master.record.master_id, set(master.record.in_sync)) == (1, {1})
    assert all(len({*one.led} & {*other.led}) == 0 for one, other in ((master, former), (master, again)))
