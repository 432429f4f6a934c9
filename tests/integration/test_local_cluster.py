"""Real servers as child processes: they come up, survive what tests do to them, and do not outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq.local.server_process import ServerProcess, free_port
from minimq_common.errors import CannotListen, Closed, InvalidArgument
from support.cases import for_each
from support.server_copies import real_commands
from support.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def commands() -> Iterator[None]:
    """The servers are started as users start them."""
    with real_commands():
        yield


@pytest.fixture
def single() -> Iterator[LocalCluster]:
    """One name server and one broker."""
    with LocalCluster(brokers=1) as own:
        yield own


def exists(pid: int) -> bool:
    """Return true if a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(cluster: LocalCluster) -> list[int]:
    return [server.pid for server in (*cluster.nameservers, *cluster.brokers) if server.pid is not None]


# ---- Coming up and going ------------------------------------------------------------------------


@pytest.mark.usefixtures("commands")
def test_all_brokers_are_registered_when_it_is_up_and_nothing_stays() -> None:
    with LocalCluster(brokers=3, nameservers=2) as cluster:
        assert [server.name for server in cluster.brokers] == ["broker-a", "broker-b", "broker-c"]
        assert cluster.nameserver == ",".join(server.address for server in cluster.nameservers)
        for server in cluster.nameservers:
            with Admin(server.address) as admin:
                assert [broker.master for broker in admin.cluster()] == [broker.address for broker in cluster.brokers]
        processes, data_dir = pids(cluster), cluster.data_dir
        assert len(processes) == 5
        assert (data_dir / "broker-b").is_dir()
        assert "ready role=broker" in cluster.server("broker-b").log_path.read_text()
    assert not any(exists(pid) for pid in processes)
    assert not data_dir.exists()
    cluster.stop()


def test_a_given_directory_is_kept_and_its_topics_are_there_again(tmp_path: Path) -> None:
    port = free_port()
    for topics in ([], ["orders"]):
        with LocalCluster(brokers=1, port=port, data_dir=tmp_path / "data") as cluster:
            assert cluster.nameserver == f"127.0.0.1:{port}"
            with Admin(cluster.nameserver) as admin:
                assert admin.list_topics() == topics
                admin.create_topic("orders", if_not_exists=True)
    assert (tmp_path / "data" / "broker-a").is_dir()


# ---- What cannot be -----------------------------------------------------------------------------


@for_each(
    ("arguments", "text"),
    [
        ({"slaves": -1}, "slaves is -1"),
        ({"brokers": 0}, "1 to 26"),
        ({"brokers": 27}, "1 to 26"),
        ({"nameservers": 0}, "from 1 to 99"),
        ({"port": 65_536}, "0 to 65535"),
        ({"port": -1}, "0 to 65535"),
        ({"cluster": "a b"}, "illegal cluster name"),
        ({"broker_options": {"data_dir": "/"}}, "the cluster itself sets data_dir"),
        ({"nameserver_options": {"listen": "x:1"}}, "the cluster itself sets listen"),
    ],
)
def test_what_breaks_a_rule_is_rejected_before_anything_starts(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        LocalCluster(**arguments)  # type: ignore[arg-type]  # that is the point


@pytest.mark.usefixtures("commands")
def test_a_server_that_does_not_start_says_why_and_the_others_end() -> None:
    cluster = LocalCluster(brokers=2, broker_options={"no_such_option": 1})
    with pytest.raises(InvalidArgument, match=r"broker-a ended with status 2.*\n(.*\n)*.*No such option"):
        cluster.start()
    assert pids(cluster) == []
    assert not cluster.data_dir.exists()
    with pytest.raises(Closed):
        cluster.start()


def test_a_port_that_is_taken_is_an_error_when_the_user_chose_it(single: LocalCluster) -> None:
    port = int(single.nameserver.rpartition(":")[2])
    with pytest.raises(CannotListen, match="the port is in use"), LocalCluster(brokers=1, port=port):
        pass
    assert single.brokers[0].running


# ---- Faults -------------------------------------------------------------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("end", [ServerProcess.stop, ServerProcess.kill], ids=["stop", "kill"])
def test_a_server_comes_back_at_its_address_with_its_data(
    single: LocalCluster, end: Callable[[ServerProcess], None]
) -> None:
    broker = single.brokers[0]
    with Admin(single.nameserver) as admin:
        admin.create_topic("orders")
        pid, address = broker.pid, broker.address
        end(broker)
        end(broker)
        assert (broker.pid, broker.running) == (None, False)
        assert admin.cluster() == []
        broker.start()
        broker.start()
        assert broker.pid not in (None, pid)
        assert broker.address == address
        assert len(admin.describe_topic("orders").queues) == 8


@pytest.mark.fault
def test_a_broker_starts_while_the_name_server_is_down(single: LocalCluster) -> None:
    single.nameservers[0].kill()
    single.brokers[0].restart()
    single.nameservers[0].start()
    with Admin(single.nameserver) as admin:
        assert len(admin.cluster()) == 1


@pytest.mark.fault
def test_a_paused_server_exists_and_is_ended_all_the_same() -> None:
    with LocalCluster(brokers=2) as cluster:
        first, second = cluster.brokers
        for server in (first, second, cluster.nameservers[0]):
            server.pause()
            assert server.paused
            assert server.running
            assert Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        second.stop()
        assert not second.paused
        first.resume()
        assert not first.paused
        first.pause()
        processes = pids(cluster)
        assert len(processes) == 2
    assert not any(exists(pid) for pid in processes)


# ---- The end of the parent ----------------------------------------------------------------------


PARENT = """
    import os, signal, sys
    from minimq.local.local_cluster import LocalCluster

    cluster = LocalCluster(brokers=2)
    cluster.start()
    cluster.brokers[1].pause()
    print(*(server.pid for server in (*cluster.nameservers, *cluster.brokers)), flush=True)
    {end}
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
        ("os.fork() or sys.exit(0); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
    ids=["killed", "terminated", "exit without clean-up", "exit", "killed, with a forked copy"],
)
def test_no_server_outlives_the_parent(end: str, status: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    parent = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PARENT).format(end=end)],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert parent.returncode == status
    processes = [int(pid) for pid in parent.stdout.split()]
    assert len(processes) == 3
    try:
        wait_until(lambda: not any(exists(pid) for pid in processes), 20, what="the end of the servers")
    finally:
        for pid in filter(exists, processes):
            os.kill(pid, signal.SIGKILL)
    if end == "sys.exit(4)":
        assert list(tmp_path.iterdir()) == []


def test_a_forked_copy_of_the_parent_leaves_the_cluster_alone(single: LocalCluster) -> None:
    copy = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
                import os, sys
                from minimq.local.local_cluster import LocalCluster

                with LocalCluster(brokers=1) as cluster:
                    child = os.fork()
                    if not child:
                        sys.exit()  # leaves the block and runs what is registered for the exit
                    os.waitpid(child, 0)
                    assert cluster.brokers[0].running
                    assert cluster.data_dir.exists()
            """),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert copy.returncode == 0, copy.stderr.decode()
