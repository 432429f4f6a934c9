"""Operations on brokers: their status, permission and master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from minimq.admin import values
from minimq.admin.descriptions import BrokerReport, BrokerStatus, report_from_wire
from minimq.admin.name_server_queries import ConflictReport, conflicts, forget
from minimq.admin.operation import Arguments, Form, Operation, Operations, Param, method
from minimq.admin.problems import of_broker, without_master
from minimq.admin.texts import duration_of, permission_note, size_of
from minimq.admin.views import Plan, PlanRow, Rows, Table, View, columns, name_in_rows, row_of
from minimq.connection.offline_brokers import state_of
from minimq.connection.retry_schedule import RECONNECT_S
from minimq_common.errors import AccessDenied, DeadlineExceeded, InvalidArgument, UsageError
from minimq_common.model import MASTER_ID, BrokerData, OfflineBroker, Permission, permission_name
from minimq_common.names import check_broker
from minimq_proto.v1 import broker_pb2, retention_pb2

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from minimq.admin.descriptions import ReplicationReport, SlaveStatus

    #: Its address and its report.
    Replica = tuple[str, ReplicationReport]


#: Timeout of a promotion in seconds, enough for a long lease.
_PROMOTION_S = 60.0

_BROKERS = Table(
    "no broker is registered",
    columns(
        "cluster broker id address state replica role mode term in_sync behind permission "
        "up_for messages_in messages_out disk full",
        id="Route id",
        messages_in="In",
        messages_out="Out",
        full="Disk full",
    ),
)

# ---- Plans and results ------------------------------------------------------------------------------


def _view_status(admin: BrokerOperations, _given: Arguments, statuses: list[BrokerStatus], _plan: Plan | None) -> View:
    rows, conflicts = status_rows(statuses), admin.conflicts()
    return View(
        json=rows,
        lines=[Rows(_BROKERS, [{**row, **_readable(row)} for row in rows], _uninformative(rows))],
        notes=[
            *(f"name server {conflict.nameserver}: {conflict.reason}" for conflict in conflicts),
            *(each.text for each in without_master(statuses)),
        ],
        is_complete=not conflicts,
    )


#: What a row has of the report about replication.
_KEYS = (
    *("role", "replica_id", "term", "sync", "min_in_sync", "in_sync", "confirmed"),
    *("lease_s", "controller_silent_s", "by_replicas_s", "behind_bytes"),
)


def status_rows(statuses: Sequence[BrokerStatus]) -> list[dict[str, Any]]:
    """Return a row for each replica. The lag of a slave comes from its master."""
    seen = {
        (item.broker_name, each.replica_id): each
        for item in statuses
        if item.report is not None and item.report.replication.role == "master"
        for each in item.report.replication.replicas
    }
    return [_status_row(item, seen) for item in statuses]


def _status_row(item: BrokerStatus, seen: Mapping[tuple[str, int], SlaveStatus]) -> dict[str, Any]:
    row = row_of(item, state="up" if item.error is None else item.error)
    report = row.pop("report") or dict.fromkeys(BrokerReport.__dataclass_fields__)
    for name in ("error", "replication", "store_failed", "clock_ahead_s", "stamps_ahead_s", "slow_sync_s"):
        row.pop(name, None)
        report.pop(name, None)
    if report["disk_used"] is not None:
        report["disk_used"] = round(report["disk_used"], 4)
    row |= report | dict.fromkeys(map(name_in_rows, (*_KEYS, "behind_s", "replicas", "problem")))
    if item.report is None:
        return row
    row["problem"] = "; ".join(each.sentence for each in of_broker(item)) or None
    about = item.report.replication
    if about.role != "alone":
        replicas = [row_of(each, in_sync=each.replica_id in about.in_sync) for each in about.replicas]
        row |= row_of(about, keep=_KEYS, replicas=replicas)
        if about.role == "slave" and (lag := seen.get((item.broker_name, about.replica_id))) is not None:
            row |= {"behind_s": lag.behind_s, "behind_bytes": lag.behind_bytes}
    return row


def _uninformative(rows: Sequence[dict[str, Any]]) -> frozenset[str]:
    found = {key for key in ("cluster", "id") if len({row[key] for row in rows}) <= 1}
    if not any(row["role"] for row in rows):
        found |= {"role", "replica", "mode", "term", "in_sync", "behind"}
    if {row["permission"] for row in rows} <= {permission_name(Permission.READ_WRITE), None}:
        found |= {"permission"}
    return frozenset(found)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    started_at, used, behind_bytes = row["started_at"], row["disk_used"], row["behind_bytes"]
    behind = None if behind_bytes is None else size_of(behind_bytes)
    if behind_bytes and row["behind_s"] is not None:
        behind = f"{behind}, {duration_of(row['behind_s'])}"
    level = "" if row["disk_level"] == "normal" else f" ({row['disk_level']})"
    return {
        "up_for": started_at and duration_of((datetime.now(UTC) - started_at).total_seconds()),
        "disk": None if started_at is None else size_of(row["disk_bytes"]),
        "full": None if used is None else f"{used:.0%}{level}",
        "mode": ("sync" if row["sync"] else "async") if row["role"] == "master" else None,
        "behind": behind,
        "state": row["problem"] or row["state"],
    }


def _plan_deletion(_admin: BrokerOperations, given: Arguments) -> Plan:
    note = "its data stays; if it starts, it is back"
    return Plan(rows=[PlanRow(f"broker {given.broker_name}", "offline", None, note)])


def _view_deletion(_admin: BrokerOperations, given: Arguments, remembered: bool, plan: Plan) -> View:
    if not remembered:
        name = given.broker_name
        text = f"no name server remembers a broker {name} as offline: `minimq cluster status` lists those that are"
        raise UsageError(text)
    return plan.view()


def _permission_of(admin: BrokerOperations, name: str) -> Permission | None:
    """Return a broker's permission; None while its master does not answer. Raises as `set_broker_permission`."""
    admin._masters.find([name], need="all")  # waits for an election, and raises if the broker is offline
    masters = [each for each in admin.broker_status() if (each.broker_name, each.broker_id) == (name, MASTER_ID)]
    return next((each.report.permission for each in masters if each.report is not None), None)


def _permission_now(admin: BrokerOperations, given: Arguments) -> dict[str, str]:
    now = _permission_of(admin, given.broker_name)
    return {} if now is None else {"permission": permission_name(now)}


def _plan_permission(admin: BrokerOperations, given: Arguments) -> Plan:
    now, then = _permission_of(admin, given.broker_name), given.permission
    row = PlanRow(
        f"permission of {given.broker_name}",
        None if now is None else permission_name(now),
        permission_name(then),
        permission_note(then),
    )
    return Plan(rows=[row])


def _replicas_of(admin: BrokerOperations, name: str) -> dict[int, Replica]:
    """Return address and report of the replicas of a broker that answer, by number. Raises `InvalidArgument`."""
    statuses = admin.broker_status()
    if name not in (names := sorted({each.broker_name for each in statuses})):
        raise InvalidArgument(f"there is no broker {name!r}: the name server knows {', '.join(names) or 'none'}")
    reports = [(each.address, each.report.replication) for each in statuses if each.broker_name == name and each.report]
    return {report.replica_id: (address, report) for address, report in reports if report.role != "alone"}


def _replica(found: Mapping[int, Replica], given: Arguments) -> Replica:
    if given.replica_id not in found:
        known = ", ".join(map(str, sorted(found))) or "none"
        raise InvalidArgument(
            f"broker {given.broker_name!r} has no replica {given.replica_id} that answers: there are {known}"
        )
    return found[given.replica_id]


def _master_and_in_sync(found: Mapping[int, Replica]) -> tuple[ReplicationReport | None, set[int]]:
    reports = [report for _, report in found.values()]
    master = next((each for each in reports if each.role == "master"), None)
    return master, {number for each in ([master] if master else reports) for number in each.in_sync}


def _replica_choices(admin: BrokerOperations, given: Arguments) -> dict[str, Sequence[tuple[str, str]]]:
    found = _replicas_of(admin, given.broker_name)
    master, in_sync = _master_and_in_sync(found)
    others = [number for number in found if master is None or number != master.replica_id]
    if not others:
        raise InvalidArgument(f"broker {given.broker_name} has no other replica that answers")
    return {
        "replica_id": [(str(each), f"replica {each}{'' if each in in_sync else ', not in sync'}") for each in others]
    }


def _plan_promotion(admin: BrokerOperations, given: Arguments) -> Plan:
    found = _replicas_of(admin, given.broker_name)
    _, chosen = _replica(found, given)
    master, in_sync = _master_and_in_sync(found)
    now = None if master is None else f"replica {master.replica_id}, term {master.term}"
    then, note = f"replica {chosen.replica_id}", "clients wait for about the time of a lease"
    if chosen is master:
        then, note = str(now), ""
    elif chosen.replica_id not in in_sync:
        behind = "" if chosen.behind_bytes is None else f", {size_of(chosen.behind_bytes)} behind"
        fate = "messages that it lacks are lost" if given.unclean else "rejected, as messages would be lost"
        note = f"not in sync{behind}: {fate}"
    return Plan(rows=[PlanRow(f"master of {given.broker_name}", now, then, note)], is_harmless=not given.unclean)


def _view_promotion(_admin: BrokerOperations, given: Arguments, term: int, plan: Plan) -> View:
    return plan.view([replace(plan.rows[0], then=f"replica {given.replica_id}, term {term}")])


# ---- Operations -------------------------------------------------------------------------------------


class BrokerOperations(Operations):
    """Shows brokers, sets their permission, and elects masters; a part of `Admin`."""

    @method
    def cluster(self) -> list[BrokerData]:
        """Return the brokers that any of the name servers knows, sorted. Raises `Unavailable` if none answers."""
        return self._masters.brokers()

    @Operation("cluster status", reads=True, example="cluster status --output json", view=_view_status)
    def broker_status(self) -> list[BrokerStatus]:
        """Show the status of each broker, also of offline ones.

        "Replica" is the --id of a replica, which `minimq cluster promote` takes. "Route id" is its id in routes, 0 for
        the master. Name servers remember a departed broker for a day, or until they restart. Brokers that do not answer
        are listed with the reason.

        The command exits with status 1 while name servers report brokers in conflict which stderr names.
        """
        replicas = {
            (broker.cluster, broker.broker_name, broker_id): address
            for broker in self.cluster()
            for broker_id, address in broker.addresses.items()
        }
        request = broker_pb2.GetStatusRequest()
        answers, failures = self._masters.calls.call_all(replicas, lambda stub: stub.GetStatus, request)
        for failure in failures.values():
            if isinstance(failure, AccessDenied):  # the same at every broker
                raise failure
        answering = {replica: replicas[replica] for replica in answers}
        rules, _ = self._masters.calls.call_all(
            answering, lambda stub: stub.of(retention_pb2).GetRules, retention_pb2.GetRulesRequest()
        )
        statuses = {
            replica: BrokerStatus(
                *replica,
                address=address,
                report=report_from_wire(answers[replica], rules.get(replica)) if replica in answers else None,
                error=failures[replica].message if replica in failures else None,
            )
            for replica, address in replicas.items()
        }
        offline = list[BrokerStatus]()
        for broker in self.offline_brokers():
            for broker_id, address in broker.addresses.items():
                replica = broker.cluster, broker.broker_name, broker_id
                # One that left during the calls is only listed as offline: that says more than the failed call.
                if replica in statuses and statuses[replica].report is None:
                    del statuses[replica]
                error = state_of(broker)
                offline.append(BrokerStatus(*replica, address, report=None, error=error, offline_since=broker.since))
        return sorted([*statuses.values(), *offline], key=lambda each: (each.cluster, each.broker_name, each.broker_id))

    @method
    def offline_brokers(self) -> list[OfflineBroker]:
        """Return the departed brokers that the reachable name servers remember, sorted by name.

        A name server remembers a lost or stopped broker for a day (`--remember-offline`), since its queues still exist,
        but not across its own restart. `delete_broker` ends that.
        """
        return list(self._masters.offline())

    @Operation(
        "cluster delete-broker", example="cluster delete-broker broker-b", plan=_plan_deletion, view=_view_deletion
    )
    def delete_broker(self, broker_name: Annotated[str, values.Broker]) -> bool:
        """Delete a broker that is offline and will not come back.

        Until then, tools and Spark report its queues as missing. Stop a registered broker first. Its data stays: if you
        start the broker again, it returns unchanged. For a broker that came back without some of its topics, for
        example with a new disk, the name servers forget these topics.

        Returns:
            True if a name server remembered it.

        Raises:
            InvalidArgument: the broker is registered and complete, or the name is invalid.
            TransportError: a name server does not answer, and may still remember the broker; the others have forgotten
                it.
        """
        calls = self._masters.calls
        check_broker(broker_name)
        return calls.wait(lambda: forget(calls.nameservers, broker_name, calls.timeout_s))

    @method
    def conflicts(self) -> list[ConflictReport]:
        """Return the brokers that claim the place of another.

        They have the same name and id, or the same address. A name server lists such a broker until it registers, or
        for some minutes after its last attempt. With etcd as the controller, two replicas with the same number are
        reported only in the log of the second.
        """
        calls = self._masters.calls
        return calls.wait(lambda: conflicts(calls.nameservers))

    @Operation(
        "cluster permission",
        example="cluster permission broker-a read",
        plan=_plan_permission,
        forms=[
            Form(
                "pause-broker",
                "/",
                "Pause sending to broker {broker_name}, or reading",
                "Pause",
                path="/brokers/{broker_name}/pause",
                fields={"permission": "Paused"},
                defaults=_permission_now,
                choices=lambda *_: values.PAUSES,
            )
        ],
    )
    def set_broker_permission(
        self, broker_name: Annotated[str, values.Broker], permission: Annotated[Permission, values.Allowed]
    ) -> None:
        """Set what clients may do with all topics of a broker.

        It survives restarts of the broker. Without WRITE, producers send to the other brokers while consumers read the
        remaining messages: use this to empty a broker before you remove it. RocketMQ calls this wipeWritePerm (read)
        and addWritePerm (read-write). The permission of each topic applies as well. It returns when the name servers
        show the change.

        Args:
            broker_name: of the broker, whose master is running.
            permission: what clients may do with all of its topics.

        Raises:
            Unavailable: the broker is offline; the text names the time.
            DeadlineExceeded: a name server did not show it in time. The permission is set.
        """
        request = broker_pb2.SetPermissionRequest(permission=int(permission))
        answer = self._masters.call(broker_name, lambda stub: stub.SetPermission, request)
        self._masters.wait_until_shown({broker_name: answer})

    @Operation(
        "cluster promote",
        example="cluster promote broker-a --replica 1",
        plan=_plan_promotion,
        view=_view_promotion,
        asks="Promote replica {replica_id} of {broker_name}, although messages that it does not have are lost?",
        forms=[
            Form(
                "promote",
                "/",
                "Promote a replica of {broker_name}",
                "Promote",
                path="/brokers/{broker_name}/promote",
                fields={"replica_id": "The replica that becomes the master"},
                typed="broker_name",
                choices=_replica_choices,
            )
        ],
    )
    def promote(
        self,
        broker_name: Annotated[str, values.Broker],
        replica_id: Annotated[int, Param(flag="--replica", metavar="ID", is_option=True)],
        *,
        unclean: bool = False,
    ) -> int:
        """Make another replica of a broker its master.

        Only an in-sync replica has every acknowledged message and takes over without loss; `minimq cluster status`
        shows them. It returns when the replica leads, after about the time of a lease.

        Args:
            broker_name: of the broker.
            replica_id: number of the replica, its --id.
            unclean: accept a replica that is not in sync: messages that it lacks are LOST.

        Returns:
            The term of the new master.

        Raises:
            NotInSync: it is not in sync, and `unclean` is not given.
            DeadlineExceeded: it took too long; the replica may still become the master.
        """
        found = _replicas_of(self, broker_name)
        address, _ = _replica(found, Arguments(broker_name=broker_name, replica_id=replica_id))
        request = broker_pb2.PromoteRequest(unclean=unclean)
        from minimq.connection.master_calls import tried  # asyncio takes as long to load as gRPC

        client = self._masters.calls

        def promote(_: float) -> Coroutine[Any, Any, broker_pb2.PromoteResponse]:
            calls, limit_s = client.connection.brokers, client.timeout_s
            return calls.call(address, lambda stub: stub.Promote, request, limit_s, RECONNECT_S)

        # The promotion continues after a timeout, and a repeated call waits for it.
        answer = client.wait(
            lambda: tried(promote, _PROMOTION_S, again=lambda error: isinstance(error, DeadlineExceeded))
        )
        return answer.term
