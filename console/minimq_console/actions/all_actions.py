"""All actions of the console."""

from __future__ import annotations

from minimq_console.action import Action
from minimq_console.actions import (
    change_topic,
    create_topic,
    delete_group,
    delete_topic,
    end_transaction,
    pause,
    produce,
    promote,
    recall,
    reset_offsets,
    resize_topic,
    settle_letters,
)

ACTIONS: tuple[Action, ...] = (
    create_topic.ACTION,
    produce.ACTION,
    resize_topic.ACTION,
    pause.TOPIC,
    change_topic.ACTION,
    delete_topic.ACTION,
    reset_offsets.ACTION,
    delete_group.ACTION,
    settle_letters.RESEND,
    settle_letters.DROP,
    recall.ACTION,
    end_transaction.ACTION,
    pause.BROKER,
    promote.ACTION,
)
