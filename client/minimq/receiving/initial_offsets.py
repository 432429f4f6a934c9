"""The topics that a group has begun to read, as far as one of its members knows: pure.

Where a group begins is decided once for each topic, by each broker for its own queues: one to which the topic comes
later has to know that the group reads it already, and since when. What was sent there after that is not passed over,
whatever the rule for new groups says. Members carry that from broker to broker. So a member asks for no queue of a
topic until it knows that the group has begun there, or all brokers that carry the topic have reported that it has not.

A broker that is away may know what the others do not. It is waited for only so long; then the others begin with all
that they have, which repeats what may have been read but loses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

#: Seconds to wait for brokers that are away.
AWAY_TIMEOUT_S = 5.0
#: Longer ago than anything was sent.
EVER_MS = 1 << 50


class InitialOffsets:
    """The times since when a group reads its topics, in seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        #: The brokers that have reported where the group has begun.
        self._reported: set[str] = set()
        #: Until when topics wait for brokers that have not.
        self._wait_until: dict[str, float] = {}
        self._unknown: set[str] = set()

    def reported(self, broker: str, begun: Mapping[str, float]) -> None:
        """Note in which topics a group has begun at a broker, and since when at the latest."""
        self._reported.add(broker)
        for topic, since in begun.items():
            self.began(topic, since)

    def began(self, topic: str, since: float) -> None:
        """Note that the group has read a topic since then, or longer."""
        self._since[topic] = min(since, self._since.get(topic, since))
        self._unknown.discard(topic)

    def undecided(self, carriers: Mapping[str, Collection[str]], now: float) -> set[str]:
        """Return the topics of whose queues none is to be asked for yet."""
        waiting: set[str] = set()
        for topic, brokers in carriers.items():
            if topic in self._since or self._reported.issuperset(brokers):
                self._wait_until.pop(topic, None)
                self._unknown.discard(topic)
            elif now < self._wait_until.setdefault(topic, now + AWAY_TIMEOUT_S):
                waiting.add(topic)
            else:
                self._unknown.add(topic)
        return waiting

    def ago_ms(self, topic: str, now: float) -> int | None:
        """Return for how long the group has read a topic; None when it has not begun."""
        if topic in self._unknown:
            return EVER_MS
        since = self._since.get(topic)
        return None if since is None else max(round((now - since) * 1000), 0)
