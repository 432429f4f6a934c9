"""The commands of operations, by noun: `minimq topic create`."""

from __future__ import annotations

import importlib

import click

from minimq.cli.commands import add_operations, command_of
from minimq.operations.operation import operations_of

#: The class that declares the operations on a noun, and the help of its group of commands.
_NOUNS = {
    "topic": ("topics:TopicOperations", "Create, list, describe, change and delete topics."),
    "group": (
        "groups:GroupOperations",
        "Show the members, queues and progress of consumer groups, move groups to other offsets, and delete groups.",
    ),
    "transaction": (
        "transactions:TransactionOperations",
        "List transactions of transactional producers that have not ended, and end them by hand.",
    ),
    "cluster": ("brokers:BrokerOperations", "Show the brokers, and set what clients may do with each."),
}


def __getattr__(noun: str) -> click.Command:
    """Return the commands of a noun."""
    if noun == "route":
        return next(command_of(each) for each in operations_of(_owner("topics:TopicOperations")) if each.name == noun)
    if noun not in _NOUNS:
        raise AttributeError(noun)
    place, text = _NOUNS[noun]
    group = click.Group(noun, help=text)
    add_operations(group, _owner(place), noun)
    return group


def _owner(place: str) -> type:
    module, _, name = place.partition(":")
    owner: type = getattr(importlib.import_module(f"minimq.operations.{module}"), name)
    return owner
