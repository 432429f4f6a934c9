"""Stands for a `BrokerHealth`: the test says which brokers answer."""

from __future__ import annotations

from minimq_common.errors import MiniMQError


class Silences:
    """Brokers that do not answer, by address."""

    def __init__(self) -> None:
        self.version = 0
        self._silent: dict[str, tuple[float, str]] = {}

    def silence(self, address: str) -> tuple[float, str] | None:
        return self._silent.get(address)

    def failed(self, address: str, error: MiniMQError, now: float) -> None:
        if not error.answered:
            self._silent[address] = now, error.message
            self.version += 1

    def answers(self, address: str) -> None:
        self._silent.pop(address, None)
        self.version += 1
