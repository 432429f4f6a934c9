"""The commands of operations, by noun: `minimq topic create`."""

from __future__ import annotations

import importlib

import click

from minimq.admin.operation import operations_of
from minimq_cli.commands import add_operations, command_of
from minimq_cli.main import COMMANDS

#: The class that declares the operations on a noun.
_NOUNS = {
    "topic": "admin.topic_changes:TopicOperations",
    "group": "admin.group_changes:GroupOperations",
    "transaction": "features.half_messages.operations:TransactionOperations",
    "delayed": "features.delayed.operations:DelayedOperations",
    "message": "features.search.operations:MessageOperations",
    "dlq": "features.dead_letters.operations:DeadLetterOperations",
    "cluster": "admin.brokers:BrokerOperations",
}
#: Further help of a group of commands.
_MORE = {
    "message": "These commands need no group, and leave no trace. `minimq peek ADDRESS` shows a message.",
    "dlq": "A dead letter is a message that a group could not process; it is open until it is resent or deleted.",
}

#: Commands of nouns that are not operations.
_BESIDES = {"dlq": "dlq:describe"}
#: Operations without a noun.
_ALONE = {"route": "admin.topic_changes:TopicOperations"}


def __getattr__(noun: str) -> click.Command:
    if noun in _ALONE:
        return next(command_of(each) for each in operations_of(_owner(_ALONE[noun])) if each.name == noun)
    if noun not in _NOUNS:
        raise AttributeError(noun)
    text = "\n\n".join(filter(None, (COMMANDS.get(noun, ("", ""))[1], _MORE.get(noun))))
    group = click.Group(noun, help=text)
    add_operations(group, _owner(_NOUNS[noun]), noun)
    if noun in _BESIDES:
        module, _, name = _BESIDES[noun].partition(":")
        group.add_command(getattr(importlib.import_module(f"minimq_cli.{module}"), name))
    return group


def _owner(place: str) -> type:
    module, _, name = place.partition(":")
    owner: type = getattr(importlib.import_module(f"minimq.{module}"), name)
    return owner
