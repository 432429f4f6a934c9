"""To delete a group."""

from __future__ import annotations

from minimq_common.words import count_of
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.rights import manage_group
from minimq_console.form_field import FormField
from minimq_console.page import Visit

LETTERS = FormField(name="dead_letters", label="Delete its dead letters as well", kind="switch", default="0")


def plan(visit: Visit) -> ActionPlan:
    """Return what goes with it."""
    name, admin = visit.parameters.name("group"), visit.observer.admin
    group = visit.ask("the group", lambda: admin.describe_group(name)).required()
    letters = count_of(group.dead_letters, "dead letter")
    warnings = ["A group that uses the name later is a new one, and begins elsewhere. It cannot be taken back."]
    if group.members:
        warnings.append(f"{count_of(len(group.members), 'member')} connected: it is refused until they have ended.")
    return ActionPlan(
        sentences=(
            f"Deletes group {name} with its offsets in {count_of(len(group.queues), 'queue')}, and "
            f"{count_of(group.retrying, 'message')} that wait for a retry.",
            f"It has {count_of(group.lag, 'unread message')}, which stay in their topics.",
            f"Its {letters} go as well." if LETTERS.flag(visit.parameters) else f"Its {letters} stay.",
        ),
        warnings=tuple(warnings),
        typed=name,
    )


def run(visit: Visit, _progress: Progress) -> ActionResult:
    """Delete it."""
    name = visit.parameters.name("group")
    visit.observer.changer.delete_group(name, dead_letters=LETTERS.flag(visit.parameters))
    return ActionResult(f"Group {name} was deleted.", "/groups")


ACTION = Action(
    name="delete-group",
    path="/groups/{group}/delete",
    page="/groups/{group}",
    title="Delete group {group}",
    label="Delete",
    needs=manage_group,
    fields=lambda _: (LETTERS,),
    plan=plan,
    run=run,
)
