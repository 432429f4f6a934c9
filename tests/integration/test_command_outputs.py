"""The output and exit status of every administrative command, as recorded in `command_outputs.txt`.

After a wanted change, record it anew: `RECORD=1 pytest tests/integration/test_command_outputs.py`, and read the diff.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq_cli.main import main
from support.console_actions import make_dead_letters

RECORDED = Path(__file__).with_name("command_outputs.txt")

#: What differs from run to run, and what stands for it.
_VARYING = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b[0-9a-f]{40}\b", "MESSAGE-ID"),
    (r"\b\d\d:\d\d:\d\d\.\d{3}\b", "TIME"),
    (r'("(?:lag_s|behind_s|age_s|expires_s|disk_used|min_lag_s)": )[0-9.]+', r"\1SECONDS"),
    (r'("(?:log_end|log_start|disk_bytes|disk_free_bytes|commits|segments|messages_in|messages_out)": )\d+', r"\1N"),
    (r'"version": "[^"]*"', '"version": VERSION'),
    (r"\b\d+s ago\b", "S ago"),
    (r"(?m)^(default *)?(broker-[ab]) +(ADDRESS) +up .*$", r"\1\2 \3 up ..."),
    (r"(?m) \d+s( +6d 23h)?$", r" S\1"),
    (r"\blKZvcmRlcnO[\w-]+", "HANDLE"),
    (r'"id": "\w{8}"', '"id": KEY'),
    (r"(key of \w+ +)\w{8}", r"\1KEY"),
    (r"(admin|alice)  enabled  \w{8}", r"\1  enabled  KEY"),
)

#: Each is run with its parts as typed in a shell; "@ NAME" is a step of the test.
SCRIPT = """
topic list
topic create orders --queues 2
topic create orders --queues 2
topic create orders --queues 2 --dry-run
topic create orders --queues 3 --if-not-exists
topic create a/b
topic create %DLQ%x
topic create orders2 --queues 0
topic create orders2 --queues 2000
topic create orders2 --broker broker-x
topic create state --compact
topic create fifo --fifo --queues 1 --broker broker-a --retention 7d --retention-bytes 10GiB
topic create fifo2 --retention soon
topic create fifo2 --retention-bytes much
@ messages
topic list
topic list --all --output json
topic describe orders
topic describe orders --output json
topic describe fifo
topic describe state --output json
topic describe nothing
topic update orders
topic update orders --permission read
topic update orders --permission read-write --retention 12h
topic update orders --retention default --retention-bytes 0
topic update orders --queues 4
topic update orders --queues 4 --read-queues 2
topic update orders --queues 1
topic update orders --read-queues 1
topic update nothing --queues 4
topic update fifo --broker broker-b --queues 2
topic update fifo --broker broker-b --queues 2 --dry-run
topic describe orders
route orders
route orders --output json
route nothing
cluster status
cluster status --output json
cluster permission broker-a read
route orders
cluster permission broker-a nonsense
cluster permission broker-x read
cluster permission broker-a read-write
cluster delete-broker broker-a
cluster delete-broker broker-x
cluster promote broker-a --replica 1
cluster promote broker-x --replica 1
group list
@ group
group list
group list --output json
group describe billing
group describe billing --output json
group describe nobody
group reset-offset billing orders --to earliest --dry-run
group reset-offset billing orders --to earliest --dry-run --output json
group reset-offset billing orders --to earliest
group reset-offset billing orders --to latest --queue broker-a:0 --output json
group reset-offset billing orders --to 99999
group reset-offset billing orders --to never
group reset-offset billing fifo --to earliest
group reset-offset nobody orders --to earliest
group reset-offset nobody orders --to earliest --new
group reset-offset billing orders --to earliest --queue nonsense
group delete nobody --yes
group delete nobody --yes
dlq list
@ letters
dlq list
dlq list payments --output json
dlq list nobody
dlq resend payments
dlq resend payments --all --key x
dlq resend payments --all --dry-run
dlq resend payments --id broker-z:0@1
dlq resend payments --all
dlq delete payments --all --dry-run
@ letters
dlq delete payments --all --dry-run
dlq delete payments --all --yes
dlq delete payments --all --yes
dlq delete nobody --all
delayed list
@ delayed
delayed list
delayed list --output json
delayed list --topic orders
delayed list --topic orders --output json
delayed list --since 2026-01-01T00:00Z
delayed list --topic nothing
delayed recall nonsense
transaction list
transaction list --output json
transaction list --group shop --undecided
transaction commit shop 1
transaction rollback shop 1
transaction rollback shop x
message find orders
message find orders --key k-1 --since earliest
message find orders --key k-1 --since earliest --output json
message find nothing --key k
peek orders/broker-a/0@0 -o table
peek orders/broker-a/0@0 -o jsonl
peek orders/broker-a/0@99999
peek nonsense@
message trace orders/broker-a/0@0
message trace nonsense
topic delete nothing
topic delete nothing --if-exists
topic delete fifo --broker broker-b
topic delete fifo --yes
topic delete orders --broker broker-a
topic delete state --yes
topic list
user add alice --write orders* --secrets {secrets} --to {file}
user list --secrets {secrets}
user list --secrets {secrets} --output json
user allow alice --read orders* --group billing --secrets {secrets}
user allow alice --secrets {secrets}
user allow alice --read orders* --delete --secrets {secrets}
user delete-old-keys alice --secrets {secrets}
user remove nobody --secrets {secrets}
can alice write topic orders --secrets {secrets}
can alice manage topic orders --secrets {secrets} --output json
can alice eat topic orders --secrets {secrets}
access check --secrets {secrets}
user remove alice --secrets {secrets}
user list --secrets {missing}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as cluster:
        yield cluster


class _Steps:
    """The steps between commands."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def messages(self) -> None:
        with Producer(self._cluster.nameserver) as producer:
            for number in range(6):
                queue = MessageQueue("orders", f"broker-{'ab'[number % 2]}", number // 4)
                message = Message("orders", b"body %d" % number, "paid", [f"k-{number}"], {"region": "eu"})
                producer.send(message, queue=queue)

    def group(self) -> None:
        with Admin(self._cluster.nameserver) as admin:
            admin.reset_offset("billing", "orders", "latest")
            admin.reset_offset("billing", "orders", 0, queues=[MessageQueue("orders", "broker-b", 1)])

    def letters(self) -> None:
        with Producer(self._cluster.nameserver) as producer:
            if "payments" not in self._topics():
                with Admin(self._cluster.nameserver) as admin:
                    admin.create_topic("payments", 1, brokers=["broker-a"])
                resent = 0
            else:
                resent = 2  # which fail again
            make_dead_letters(self._cluster, producer, "payments", "payments", 2, already=resent)

    def delayed(self) -> None:
        with Producer(self._cluster.nameserver) as producer:
            queue = MessageQueue("orders", "broker-a", 0)
            producer.send(Message("orders", b"later", deliver_after_s=86_400, recallable=True), queue=queue)

    def _topics(self) -> list[str]:
        with Admin(self._cluster.nameserver) as admin:
            return admin.list_topics()


def _shown(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER")
    for pattern, stands in _VARYING:
        text = re.sub(pattern, stands, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_commands_print_what_is_recorded(cluster: LocalCluster, tmp_path: Path) -> None:
    runner = CliRunner(
        env={
            **{name: None for name in os.environ if name.startswith("MINIMQ_")},
            "MINIMQ_NAMESERVER": cluster.nameserver,
        }
    )
    secrets = tmp_path / "secrets"
    assert runner.invoke(main, ["secure", "init", str(secrets), "--host", "localhost"]).exit_code == 0
    names = {"secrets": str(secrets), "missing": str(tmp_path / "missing"), "file": str(tmp_path / "alice.minimq")}
    steps, parts = _Steps(cluster), []
    for line in SCRIPT.strip().splitlines():
        if line.startswith("@"):
            getattr(steps, line[1:].strip())()
            continue
        done = runner.invoke(main, shlex.split(line.format(**names)), prog_name="minimq")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        parts.append(f"$ minimq {line}\n{_shown(done.stdout, tmp_path)}")
        if done.stderr:
            parts.append(f"stderr:\n{_shown(done.stderr, tmp_path)}")
        parts.append(f"status {done.exit_code}\n")
    text = "\n".join(parts) + "\n"
    if os.environ.get("RECORD"):
        RECORDED.write_text(text)
    assert text == RECORDED.read_text()
