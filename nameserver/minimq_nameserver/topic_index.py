"""An index of the topics of all brokers. Pure."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, KeysView


class TopicIndex:
    """The names of the brokers that carry each topic.

    What a broker name carries no more is cleared bit by bit, by `tidy`: that a broker with 50,000 topics goes takes no
    time. So there may be more in it than is carried, and never less.
    """

    def __init__(self, carries: Callable[[str, str], bool]) -> None:
        self._carries = carries
        #: Mostly one alone: a set for each topic would take most of the memory.
        self._names: dict[str, str | set[str]] = {}
        self._dropped: deque[tuple[str, Iterator[str]]] = deque()  # what is not cleared yet

    @property
    def is_tidy(self) -> bool:
        """True when every topic in it is carried."""
        return not self._dropped

    def topics(self) -> KeysView[str]:
        """Return a view of all topics, in no order; it follows the index."""
        return self._names.keys()

    def carriers(self, topic: str) -> list[str]:
        """Return the names of the brokers that carry a topic, sorted."""
        names = self._names.get(topic, ())
        return [name for name in sorted((names,) if isinstance(names, str) else names) if self._carries(name, topic)]

    def add(self, name: str, topics: Iterable[str]) -> None:
        """Note that a broker name carries topics."""
        names = self._names
        for topic in topics:
            known = names.setdefault(topic, name)
            if known is name:
                continue
            if isinstance(known, set):
                known.add(name)
            elif known != name:
                names[topic] = {known, name}

    def drop(self, name: str, topics: Iterable[str]) -> None:
        """Note that a broker name carries topics no more; nobody may change them."""
        self._dropped.append((name, iter(topics)))

    def tidy(self, most: int | None = None) -> None:
        """Clear what is carried no more: so many entries at most, everything when none is given."""
        while self._dropped and (most is None or most > 0):
            name, topics = self._dropped[0]
            part = list(itertools.islice(topics, most))
            for topic in part:
                if not self._carries(name, topic):  # or it came back meanwhile
                    self._clear(name, topic)
            if most is None or len(part) < most:
                self._dropped.popleft()
            if most is not None:
                most -= len(part)

    def _clear(self, name: str, topic: str) -> None:
        names = self._names.get(topic)
        if isinstance(names, set):
            names.discard(name)
            if len(names) == 1:
                self._names[topic] = names.pop()
        elif names == name:
            del self._names[topic]
