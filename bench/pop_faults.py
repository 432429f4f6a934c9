"""Checks under faults that a work queue loses no message and never delivers one to two workers at once.

    .venv/bin/python bench/pop_faults.py [--rounds 20] [--scenario all] [--seed N]

A round kills a worker, kills the broker, lets its slave take over, makes one of them hang, or sets the clock of the
broker. Meanwhile messages are sent, and workers, which are processes with journals, acknowledge, release, extend or
forget them. In the "fifo" scenarios the messages belong to 20 message groups, each processed in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from fault_trial import Trial, Verdict, command
from pop_journals import GRACE_S, INVISIBLE_S, judge, work
from shifted_clocks import ShiftedClock

from minimq import Admin, Message

MESSAGE_GROUPS = 20


class PopTrial(Trial):
    """Workers that take messages one by one."""

    group = topic = "jobs"

    def prepare(self, admin: Admin) -> None:
        self.clock = ShiftedClock(self.folder / "clock")
        if self.name == "clocks":
            with self.clock.for_children():
                self.cluster.brokers[0].restart()
        admin.create_topic(self.topic, queues=1, fifo=self.name.startswith("fifo"))

    def worker(self, name: str, journal: Path, seed: int) -> tuple[Callable[..., None], tuple[object, ...]]:
        is_forgetful = self.name == "forgetful"
        return work, (self.cluster.nameserver, self.topic, name, journal, seed, is_forgetful)

    def message(self, number: int) -> Message:
        is_fifo = self.name.startswith("fifo")
        return Message(
            self.topic, b"job", message_group=f"group-{random.randrange(MESSAGE_GROUPS)}" if is_fifo else None
        )

    def judge(self) -> Verdict:
        return judge(self.journals, self.killed, self.faults, self.sent)


def kill(trial: PopTrial) -> None:
    """Kill a worker, or the broker, which has no slave."""
    (trial.kill_worker if trial.chance.random() < 0.6 else trial.kill_broker)()


def failover(trial: PopTrial) -> None:
    """Kill the master; its slave takes over."""
    trial.kill_broker()


def hang(trial: PopTrial) -> None:
    """Stop a worker or the broker for a while."""
    (trial.pause_worker if trial.chance.random() < 0.7 else trial.pause_broker)(1.5 * INVISIBLE_S)


def clocks(trial: PopTrial) -> None:
    """Shift the clock of the broker by an hour, or back."""
    trial.clock.shift(trial.chance.choice((-3600, 0, 3600)))
    if trial.chance.random() < 0.3:
        trial.kill_worker()


def nothing(trial: PopTrial) -> None:
    """Do nothing: the workers record acks that they do not send, which shows that the check can fail."""


SCENARIOS = {
    **{"kill": kill, "failover": failover, "hang": hang, "clocks": clocks, "forgetful": nothing},
    **{"fifo-kill": kill, "fifo-failover": failover, "fifo-hang": hang},
}

if __name__ == "__main__":
    command(PopTrial, {"session_grace_s": GRACE_S}, SCENARIOS, unsound="forgetful", usual_rounds=20)()
