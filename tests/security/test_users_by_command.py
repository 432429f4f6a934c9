"""The first right, a rotation and a revocation, by the command line, while the servers run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from minimq import Admin, LocalCluster
from support.command import COMMAND, environment
from support.key_search import found_in, secrets_in
from support.live_user import Sending
from support.waiting import wait_until

pytestmark = pytest.mark.system

TIMEOUT_S = 60.0


def test_a_user_gets_a_right_then_another_key_and_loses_all(tmp_path: Path) -> None:
    alice, copy, printed = tmp_path / "alice.minimq", tmp_path / "copy.minimq", list[str]()

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, env=environment(), check=False
        )
        printed.append(done.stdout + done.stderr)
        return printed[-1]

    with LocalCluster(brokers=1, data_dir=tmp_path / "data", secure=True) as cluster:
        assert cluster.credentials is not None
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=2)

        def user(*arguments: str) -> None:
            said = run("user", *arguments, "--secrets", str(tmp_path / "data" / "secrets"))
            assert "error" not in said, said

        def send(credentials: Path) -> str:
            return run("--credentials", str(credentials), "produce", "orders", stdin="hello\n")

        def consume() -> str:
            return run("--credentials", str(alice), "consume", "orders", "--group", "g", "--exit-at-end")

        user("add", "alice", "--write", "orders*", "--to", str(alice))
        wait_until(lambda: "error" not in send(alice), TIMEOUT_S, what="alice may send")
        assert "`minimq user allow alice --group g`" in consume()
        user("allow", "alice", "--read", "orders*", "--group", "g")
        wait_until(lambda: "hello" in consume(), TIMEOUT_S, what="alice may read")

        shutil.copy(alice, copy)
        sending = Sending(alice, per_second=1_000)
        user("rotate", "alice", "--to", str(alice))
        wait_until(lambda: "error" not in send(alice), TIMEOUT_S, what="the new key is valid")
        assert "error" not in send(copy)
        user("delete-old-keys", "alice")
        wait_until(lambda: "the key in these credentials is not known here" in send(copy), TIMEOUT_S)
        wait_until(lambda before=sending.sent: sending.sent > before, TIMEOUT_S, what="it still sends")  # type: ignore[misc]

        user("remove", "alice")
        sending.join()
        assert "the key in these credentials is not known here" in str(sending.error)
        assert "the key in these credentials is not known here" in send(alice)

        secrets = set[bytes]()
        for path in (alice, copy, cluster.credentials):
            secrets |= secrets_in(path.read_bytes())
        logged = [each.encode() for each in printed]
        logged += [server.log_path.read_bytes() for server in (*cluster.nameservers, *cluster.brokers)]
        assert secrets
        assert not any(found_in(each, secrets) for each in logged)
