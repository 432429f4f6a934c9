"""To make another replica of a broker its master."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minimq.administration.descriptions import ReplicationReport
from minimq_common.errors import InvalidArgument
from minimq_console.action import Action, ActionPlan, ActionResult, Progress
from minimq_console.actions.rights import manage_cluster
from minimq_console.form_field import FormField
from minimq_console.page import Visit
from minimq_console.texts import listing, size

REPLICA = FormField(name="replica", label="The replica that becomes the master", kind="choice", is_required=True)


def fields(visit: Visit) -> Sequence[FormField]:
    """Return the field, with the replicas that may be promoted."""
    master, slaves = _replicas(visit)
    choices = [
        (str(each.replica_id), f"replica {each.replica_id}{'' if _is_in_sync(each, master) else ', not in sync'}")
        for each in slaves
    ]
    return (replace(REPLICA, choices=choices, default=choices[0][0]),)


def plan(visit: Visit) -> ActionPlan:
    """Return who becomes what."""
    master, slaves = _replicas(visit)
    name, wanted = visit.parameters.name("broker"), REPLICA.given(visit.parameters)
    [chosen] = [each for each in slaves if str(each.replica_id) == wanted]
    sentences = [f"Replica {chosen.replica_id} becomes the master of {name}, for a new term."]
    if master is not None:
        sentences.append(
            f"Replica {master.replica_id}, which is the master now in term {master.term}, becomes a slave."
        )
    sentences.append("Producers and consumers wait for about the time of a lease, and go on with the new master.")
    warnings = []
    if not _is_in_sync(chosen, master):
        warnings.append(
            f"Replica {chosen.replica_id} is not in sync, {size(chosen.behind_bytes)} behind: it will be refused, as "
            "messages would be lost."
        )
    return ActionPlan(sentences=tuple(sentences), warnings=tuple(warnings), typed=name)


def run(visit: Visit, progress: Progress) -> ActionResult:
    """Promote it."""
    name, replica = visit.parameters.name("broker"), REPLICA.given(visit.parameters)
    if not replica.isdecimal():
        raise InvalidArgument(f"{REPLICA.label} is {replica!r}: choose one of the form")
    progress("The controller elects the master.")
    term = visit.observer.changer.promote(name, int(replica))
    return ActionResult(f"Replica {replica} is the master of {name}, in term {term}.", "/")


def _replicas(visit: Visit) -> tuple[ReplicationReport | None, Sequence[ReplicationReport]]:
    name = visit.parameters.name("broker")
    statuses = visit.ask("the brokers", visit.observer.admin.broker_status).required()
    own = [each.report.replication for each in statuses if each.broker_name == name and each.report is not None]
    slaves = [each for each in own if each.role in ("slave", "undecided")]
    if not slaves:
        known = listing(sorted({each.broker_name for each in statuses})) or "none"
        raise InvalidArgument(f"broker {name} has no other replica that answers: there are brokers {known}")
    return next((each for each in own if each.role == "master"), None), slaves


def _is_in_sync(replica: ReplicationReport, master: ReplicationReport | None) -> bool:
    return replica.replica_id in (master or replica).in_sync


ACTION = Action(
    name="promote",
    path="/brokers/{broker}/promote",
    page="/",
    title="Promote a replica of {broker}",
    label="Promote",
    needs=manage_cluster,
    fields=fields,
    plan=plan,
    run=run,
)
