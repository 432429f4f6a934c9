"""Changes the number of queues of a topic step by step, on many brokers at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from minimq.admin.master_client import MasterClient, merge_failures
from minimq_common.errors import MinimqError, NotDrained, SystemBusy, TransportError
from minimq_common.text_units import count_of
from minimq_proto.v1 import broker_pb2

#: Pause in seconds before a rejected step is retried.
_LOOK_AGAIN_S = 0.2
#: The remedy if a group does not read the queues that are being removed.
_REMEDY = "--ignore-group leaves a dead group out, --force hides the messages all the same"


class Counts(NamedTuple):
    """The numbers of queues of a topic that consumers and producers see on one broker."""

    read: int
    write: int


def next_counts(now: Counts, queues: int) -> Counts | None:
    """Return the counts after the next step towards a number of queues; None when it is reached.

    Consumers see added queues before producers do, and removed ones longer, so they read everything that is sent.
    """
    if now.read < queues:
        return Counts(queues, min(now.write, queues))
    if now.write != queues:
        return Counts(now.read, queues)
    if now.read > queues:
        return Counts(queues, queues)
    return None


def say_step(steps: Mapping[str, Counts], now: Mapping[str, Counts]) -> str:
    """Describe the steps in one sentence; steps and counts are by broker name."""
    by_action: dict[tuple[str, str], list[str]] = {}  # (text before the brokers, text after them): brokers
    for broker, step in steps.items():
        rest = ""
        if step.read > now[broker].read:
            action = f"showing {count_of(step.read, 'queue')} to consumers"
        elif step.read < now[broker].read:
            first, last = step.read, now[broker].read - 1
            action = f"hiding queue {first}" if first == last else f"hiding queues {first} to {last}"
            rest = f" from consumers, once every group has read {'it' if first == last else 'them'}"
        else:
            action = f"letting producers use {count_of(step.write, 'queue')}"
        by_action.setdefault((action, rest), []).append(broker)
    return "; ".join(f"{action} on {', '.join(brokers)}{rest}" for (action, rest), brokers in by_action.items())


def say_undo(topic: str, before: Mapping[str, Counts]) -> str:
    """Return the commands that restore the former number of queues on each broker."""
    by_count: dict[int, list[str]] = {}
    for broker, counts in before.items():
        by_count.setdefault(counts.read, []).append(broker)
    commands = []
    for count, brokers in by_count.items():
        only = "".join(f" --broker {broker}" for broker in brokers) if len(by_count) > 1 else ""
        commands.append(f"`minimq topic update {topic} --queues {count}{only}`")
    return " and ".join(commands)


@dataclass(slots=True)
class Resize:
    """One resize of one topic. Used by one thread.

    It stores no progress: each round asks the brokers for their counts, waits until the name servers show these, and
    makes the next step of each broker. So it can continue after an interrupted resize or a crash.
    """

    masters: MasterClient
    topic: str
    queues: int
    #: Addresses of the brokers that carry the topic, by name.
    carriers: Mapping[str, str]
    ignored: Sequence[str]
    _: KW_ONLY
    force: bool
    progress: Callable[[str], None] | None
    _said: str = ""
    _steps: dict[str, Counts] = field(default_factory=dict)
    _before: dict[str, Counts] = field(default_factory=dict)
    _now: dict[str, Counts] = field(default_factory=dict)

    def run(self, timeout_s: float, is_wanted: Callable[[], bool] | None = None) -> None:
        """Resize, and return when it is done. Raises as `update_topic`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if self._round():
                    return
            except MinimqError as error:
                if not error.retriable:
                    raise
                if time.monotonic() >= deadline or (is_wanted is not None and not is_wanted()):
                    raise self._too_late(error, timeout_s) from None
                hint = f"; {_REMEDY}" if isinstance(error, NotDrained) else ""
                self._say(f"waiting: {error.message}{hint}")
                time.sleep(_LOOK_AGAIN_S)
                self._refresh_addresses()

    def _round(self) -> bool:
        seen = self._look()
        self._now = {broker: Counts(it.topic.read_queues, it.topic.write_queues) for broker, it in seen.items()}
        self._before = self._before or dict(self._now)
        steps = {broker: step for broker, now in self._now.items() if (step := next_counts(now, self.queues))}
        self.masters.wait_until_shown(seen)
        if not steps:
            return True
        new = {broker: step for broker, step in steps.items() if self._steps.get(broker) != step}
        if new:  # report each step once, not at every retry
            self._steps |= new
            self._say(say_step(new, self._now))
        self._make(steps)
        return False

    def _look(self) -> dict[str, broker_pb2.DescribeTopicResponse]:
        request = broker_pb2.DescribeTopicRequest(topic=self.topic)
        answers, failures = self.masters.calls.call_all(self.carriers, lambda stub: stub.DescribeTopic, request)
        if failures:
            raise merge_failures(failures)
        return answers

    def _make(self, steps: Mapping[str, Counts]) -> None:
        requests = {
            broker: broker_pb2.UpdateTopicRequest(
                topic=self.topic,
                read_queues=step.read,
                write_queues=step.write,
                force=self.force,
                ignored_groups=self.ignored,
            )
            for broker, step in steps.items()
        }
        answers, failures = self.masters.calls.call_all(self.carriers, lambda stub: stub.UpdateTopic, requests)
        for broker, answer in answers.items():
            self._now[broker] = Counts(answer.topic.read_queues, answer.topic.write_queues)
        if failures:
            raise merge_failures(failures)

    def _refresh_addresses(self) -> None:
        with contextlib.suppress(TransportError, SystemBusy):
            found = self.masters.find()
            self.carriers = {broker: found.get(broker, address) for broker, address in self.carriers.items()}

    def _say(self, sentence: str) -> None:
        if self.progress is not None and sentence != self._said:
            self._said = sentence
            self.progress(sentence)

    def _too_late(self, error: MinimqError, timeout_s: float) -> MinimqError:
        text = (
            f"topic {self.topic} does not have {count_of(self.queues, 'queue')} everywhere after {timeout_s:g} s: "
            f"{error.message}"
        )
        if self._now:
            counts = ", ".join(f"{broker} {now.read} and {now.write}" for broker, now in self._now.items())
            text += f". Consumers and producers see now: {counts}. Repeat the command to continue"
        if isinstance(error, NotDrained):
            text += f"; {_REMEDY}"
        if self._before:
            text += f"; or go back with {say_undo(self.topic, self._before)}"
        return error.with_message(text)
