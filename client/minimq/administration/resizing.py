"""The steps by which a topic on one broker gets another number of queues. Decides only; nothing is sent from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minimq_common.words import count_of


class Counts(NamedTuple):
    """The numbers of queues of a topic that consumers and producers see on one broker."""

    read: int
    write: int


def next_counts(now: Counts, queues: int) -> Counts | None:
    """Return the counts after the next step towards a number of queues, None when it is reached.

    Consumers come first when queues are added, and last when they are taken away, so that what is sent is read. Each
    step is made when all name servers show the one before.
    """
    if now.read < queues:
        return Counts(queues, min(now.write, queues))
    if now.write != queues:
        return Counts(now.read, queues)
    if now.read > queues:
        return Counts(queues, queues)
    return None


def say_step(steps: Mapping[str, Counts], now: Mapping[str, Counts]) -> str:
    """Return what is being done in one sentence; steps and counts are by broker name."""
    by_action: dict[tuple[str, str], list[str]] = {}  # the sentence before the brokers, and after them
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
    """Return the commands that give each broker the number of queues back that consumers saw before."""
    by_count: dict[int, list[str]] = {}
    for broker, counts in before.items():
        by_count.setdefault(counts.read, []).append(broker)
    commands = []
    for count, brokers in by_count.items():
        only = "".join(f" --broker {broker}" for broker in brokers) if len(by_count) > 1 else ""
        commands.append(f"`minimq topic update {topic} --queues {count}{only}`")
    return " and ".join(commands)
