"""That a work queue loses no message, and gives none to two, whatever dies: real workers, and journals of theirs.

    .venv/bin/python bench/pop_faults.py [--rounds 20] [--scenario all] [--seed N]

A round kills a worker, kills the broker, lets its slave take over, makes one of them hang, or sets the clock of the
broker; meanwhile messages are sent, and workers acknowledge, release, keep and forget them. In the scenarios
with "fifo" they are of 20 message groups, each of which has to be done in order.
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
    """A worker dies, or the broker does, which has no slave."""
    (trial.kill_worker if trial.chance.random() < 0.6 else trial.kill_broker)()


def failover(trial: PopTrial) -> None:
    """The master dies, and its slave takes over."""
    trial.kill_broker()


def hang(trial: PopTrial) -> None:
    """A worker, or the broker, hangs for a while."""
    (trial.pause_worker if trial.chance.random() < 0.7 else trial.pause_broker)(1.5 * INVISIBLE_S)


def clocks(trial: PopTrial) -> None:
    """The clock of the broker jumps by an hour, there or back."""
    trial.clock.shift(trial.chance.choice((-3600, 0, 3600)))
    if trial.chance.random() < 0.3:
        trial.kill_worker()


def nothing(trial: PopTrial) -> None:
    """Nothing happens, but workers write down acknowledgements that they do not send: shows that the check can fail."""


SCENARIOS = {
    **{"kill": kill, "failover": failover, "hang": hang, "clocks": clocks, "forgetful": nothing},
    **{"fifo-kill": kill, "fifo-failover": failover, "fifo-hang": hang},
}

if __name__ == "__main__":
    command(PopTrial, {"session_grace_s": GRACE_S}, SCENARIOS, unsound="forgetful", usual_rounds=20)()
