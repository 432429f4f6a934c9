"""All actions of the console."""

from __future__ import annotations

from minimq_console.action import Action
from minimq_console.actions import produce
from minimq_console.operation_actions import FORMS

ACTIONS: tuple[Action, ...] = (*FORMS.values(), produce.ACTION)
