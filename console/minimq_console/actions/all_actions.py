"""All actions of the console."""

from __future__ import annotations

from minimq_console.action import Action
from minimq_console.actions import delete_group, end_transaction, produce, recall, reset_offsets, settle_letters
from minimq_console.operation_actions import FORMS

ACTIONS: tuple[Action, ...] = (
    *FORMS.values(),
    produce.ACTION,
    reset_offsets.ACTION,
    delete_group.ACTION,
    settle_letters.RESEND,
    settle_letters.DROP,
    recall.ACTION,
    end_transaction.ACTION,
)
