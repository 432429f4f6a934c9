"""The rights that actions take. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minimq_common.names import check_group, check_topic
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_console.parameters import Parameters


def write_topic(given: Parameters) -> Sequence[Need]:
    """Return the right to send to the topic in the path. Raises `InvalidArgument` if that is none."""
    return (Need(Verb.WRITE, Resource.TOPIC, check_topic(given.name("topic"))),)


def read_group(given: Parameters) -> Sequence[Need]:
    """Return the right to read by the group in the path. Raises `InvalidArgument` if that is none."""
    return (Need(Verb.READ, Resource.GROUP, check_group(given.name("group"))),)
