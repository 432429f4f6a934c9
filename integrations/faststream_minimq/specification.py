"""Descriptions of subscribers and publishers for the AsyncAPI document."""

from __future__ import annotations

from dataclasses import dataclass

from faststream._internal.configs import PublisherSpecificationConfig, SubscriberSpecificationConfig
from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from faststream_minimq.config import MinimqBrokerConfig


@dataclass(kw_only=True)
class MinimqSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """The description of a subscriber in the AsyncAPI document."""

    topic: str


@dataclass(kw_only=True)
class MinimqPublisherSpecificationConfig(PublisherSpecificationConfig):
    """The description of a publisher in the AsyncAPI document."""

    topic: str


class MinimqSubscriberSpecification(SubscriberSpecification[MinimqBrokerConfig, MinimqSubscriberSpecificationConfig]):
    """Describes a subscriber. AsyncAPI has no bindings for minimq."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class MinimqPublisherSpecification(PublisherSpecification[MinimqBrokerConfig, MinimqPublisherSpecificationConfig]):
    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
