"""The commands of operations, by noun: `minimq topic create`."""

from __future__ import annotations

import importlib

import click

from minimq.cli.base import Group
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
    "user": (
        "users:UserOperations",
        "Add users, grant rights, and rotate or revoke keys.\n\nThe commands change a running cluster, with the "
        "credentials of an administrator, and return when the change is in force at all servers. With --secrets DIR "
        "they change access.toml in a folder of `minimq secure init` instead; servers that were started with that "
        "folder follow within a second if its version is larger than that of the cluster.",
    ),
    "access": ("users:UserOperations", "Show or replace the document of users and rules."),
    "access issuer": (
        "users:UserOperations",
        "Manage the identity providers whose tokens are accepted.\n\nTokens are JWT, and replace keys.",
    ),
    "delayed": (
        "delayed:DelayedOperations",
        "List delayed messages, which wait until they are due, and recall those that can be recalled.",
    ),
    "message": (
        "messages:MessageOperations",
        "Show, find and trace single messages.\n\nThese commands need no group, and leave no trace.",
    ),
    "dlq": (
        "letters:LetterOperations",
        "Show, resend or drop the messages that groups could not process.\n\nA dead letter is open until it is resent "
        "or dropped.",
    ),
    "cluster": ("brokers:BrokerOperations", "Show the brokers, and set what clients may do with each."),
}

#: Commands of nouns that are no operations.
_BESIDES = {"message": "peek:tail", "dlq": "dlq:show"}
#: Operations without a noun.
_ALONE = {"route": "topics:TopicOperations", "can": "users:UserOperations"}


def __getattr__(noun: str) -> click.Command:
    """Return the commands of a noun."""
    if noun in _ALONE:
        return next(command_of(each) for each in operations_of(_owner(_ALONE[noun])) if each.name == noun)
    if noun not in _NOUNS:
        raise AttributeError(noun)
    place, text = _NOUNS[noun]
    group = Group(noun.rsplit(maxsplit=1)[-1], help=text)
    add_operations(group, _owner(place), noun)
    for below in _NOUNS:
        if below.startswith(f"{noun} "):
            group.add_command(__getattr__(below), below.removeprefix(f"{noun} "))
    if noun in _BESIDES:
        module, _, name = _BESIDES[noun].partition(":")
        group.add_command(getattr(importlib.import_module(f"minimq.cli.{module}"), name))
    return group


def _owner(place: str) -> type:
    module, _, name = place.partition(":")
    owner: type = getattr(importlib.import_module(f"minimq.operations.{module}"), name)
    return owner
