"""For each alert of docker/monitoring/rules: metrics that set it off, and what it then says."""

from __future__ import annotations

from dataclasses import dataclass, field

BROKER = 'job="minimq", instance="broker-a-0:9911"'
OTHER = 'job="minimq", instance="broker-b-0:9911"'
NAMESERVER = 'job="minimq", instance="nameserver-1:9912"'


@dataclass(frozen=True)
class Case:
    """Metrics, and the alert that they set off.

    Args:
        alert: its name.
        series: each with its values, one every `step` minutes, as promtool writes them.
        summary: what the alert says.
        labels: of the alert, but for its name, its severity and its job.
        at: the moment, in steps; one before at which it does not fire yet is `quiet_at`.
        step: minutes.
    """

    alert: str
    series: dict[str, str]
    summary: str
    labels: dict[str, str] = field(default_factory=lambda: {"instance": "broker-a-0:9911"})
    at: int = 60
    quiet_at: int | None = None
    step: int = 1


def histogram(name: str, labels: str, seconds: float) -> dict[str, str]:
    """Return the series of a histogram whose values all lie between half of `seconds` and that."""
    counts = {seconds / 2: "0x200", seconds: "0+60x200", float("inf"): "0+60x200"}
    return {
        f'{name}_bucket{{{labels}, le="{bound if bound < float("inf") else "+Inf"}"}}': values
        for bound, values in counts.items()
    }


#: The broker is the master, without which what it says of messages does not count.
LEADS = {f'minimq_broker_role{{{BROKER}, role="master"}}': "1x200"}
AT_NAMESERVER = {"instance": "nameserver-1:9912"}
DAY = 86_400

CASES = (
    Case("MinimqServerDown", {f"up{{{BROKER}}}": "1x10 0x90"}, "broker-a-0:9911 shows no metrics", at=12, quiet_at=11),
    Case(
        "MinimqBrokersMissing",
        {f'minimq_nameserver_brokers{{{NAMESERVER}, cluster="default"}}': "4x70 3x90"},
        "nameserver-1:9912 knows fewer brokers than an hour ago",
        AT_NAMESERVER,
        at=75,
        quiet_at=70,
    ),
    Case(
        "MinimqConflict",
        {f"minimq_nameserver_conflicts{{{NAMESERVER}}}": "0x20 1x90"},
        "Two brokers claim one name and id at nameserver-1:9912",
        AT_NAMESERVER,
        quiet_at=20,
    ),
    Case(
        "MinimqBrokerOverloaded",
        histogram("minimq_broker_event_loop_lag_seconds", BROKER, 0.5),
        "broker-a-0:9911 reacts 497.5ms late; clients see that as latency",
    ),
    Case(
        "MinimqNameServerOverloaded",
        histogram("minimq_nameserver_event_loop_lag_seconds", NAMESERVER, 0.5),
        "nameserver-1:9912 reacts 497.5ms late",
        AT_NAMESERVER,
    ),
    Case(
        "MinimqStoreFailed",
        {f"minimq_broker_store_failed{{{BROKER}}}": "0x30 1x90"},
        "broker-a-0:9911 stores nothing until it is restarted",
        quiet_at=30,
    ),
    Case(
        "MinimqDiskFills",
        {f"minimq_broker_disk_used_ratio{{{BROKER}}}": "0.79x30 0.85x90"},
        "The disk of broker-a-0:9911 is 85% full",
        quiet_at=35,
    ),
    Case(
        "MinimqSlowDisk",
        histogram("minimq_broker_commit_seconds", BROKER, 1.0),
        "One of 100 commits of broker-a-0:9911 takes 995ms or longer",
    ),
    Case(
        "MinimqDamagedSegments",
        {f"minimq_broker_damaged_segments{{{BROKER}}}": "0x30 2x90"},
        "2 files of the log of broker-a-0:9911 are damaged",
        quiet_at=32,
    ),
    Case(
        "MinimqCheckpointOld",
        {f"minimq_broker_checkpoint_age_seconds{{{BROKER}}}": "5x30 90x90"},
        "The last checkpoint of broker-a-0:9911 is 1m 30s old",
        quiet_at=30,
    ),
    Case(
        "MinimqClockAhead",
        {f"minimq_broker_clock_ahead_seconds{{{BROKER}}}": "0x30 7200x90"},
        "The clock of broker-a-0:9911 has jumped ahead by 2h 0m 0s",
        quiet_at=30,
    ),
    Case(
        "MinimqAppendsRejected",
        {f'minimq_broker_appends_rejected_total{{{BROKER}, reason="STORE_FULL"}}': "0+120x200"},
        "broker-a-0:9911 rejects 2 batches a second: STORE_FULL",
        {"instance": "broker-a-0:9911", "reason": "STORE_FULL"},
        quiet_at=3,
    ),
    Case(
        "MinimqGroupFallsBehind",
        {**LEADS, f'minimq_broker_group_lag_messages{{{BROKER}, group="billing", topic="orders"}}': "0+10000x200"},
        "Group billing is 600k messages behind in orders, and falls back",
        {"group": "billing", "topic": "orders"},
        quiet_at=12,
    ),
    Case(
        "MinimqDeadLetters",
        {f'minimq_broker_dead_letters{{{BROKER}, group="billing"}}': "3x90 5x90"},
        "Group billing got 2 dead letters in an hour",
        {"instance": "broker-a-0:9911", "group": "billing"},
        at=100,
        quiet_at=89,
    ),
    Case(
        "MinimqDeadLettersDeleted",
        {f"minimq_broker_dead_letters_deleted_total{{{BROKER}}}": "7x30 9x90"},
        "broker-a-0:9911 deleted dead letters",
        quiet_at=30,
    ),
    Case(
        "MinimqDelayedOverdue",
        {**LEADS, f"minimq_broker_delayed_overdue_seconds{{{BROKER}}}": "0x30 90x90"},
        "A delayed message of broker-a-0:9911 is 1m 30s late",
        quiet_at=30,
    ),
    Case(
        "MinimqHalfUndecided",
        {**LEADS, f"minimq_broker_half_transactions_undecided{{{BROKER}}}": "0x30 3x90"},
        "3 transactions with half messages wait for a decision at broker-a-0:9911",
        quiet_at=40,
    ),
    Case(
        "MinimqTooManyStreams",
        {f'minimq_broker_streams_rejected_total{{{BROKER}, call="pull"}}': "0x55 2x90"},
        "broker-a-0:9911 rejects streams of the call pull",
        {"instance": "broker-a-0:9911", "call": "pull"},
        quiet_at=55,
    ),
    Case(
        "MinimqTooFewInSync",
        {f"minimq_broker_in_sync_replicas{{{BROKER}}}": "2x30 1x90"},
        "broker-a-0:9911 has 1 replicas in sync, itself included",
        quiet_at=30,
    ),
    Case(
        "MinimqReplicaBehind",
        {f'minimq_broker_replica_lag_seconds{{{BROKER}, replica="1"}}': "0x30 45x90"},
        "Replica 1 lacks what broker-a-0:9911 got in 45s",
        {"instance": "broker-a-0:9911", "replica": "1"},
        quiet_at=30,
    ),
    Case(
        "MinimqUndecided",
        {f'minimq_broker_role{{{BROKER}, role="undecided"}}': "0x30 1x90"},
        "broker-a-0:9911 is neither master nor slave",
        {"instance": "broker-a-0:9911", "role": "undecided"},
        quiet_at=30,
    ),
    Case(
        "MinimqControllerSilent",
        {f"minimq_broker_controller_silent_seconds{{{BROKER}}}": "0x30 90x90"},
        "The controller has not answered broker-a-0:9911 for 1m 30s",
        quiet_at=30,
    ),
    Case(
        "MinimqNoMaster",
        {f'minimq_nameserver_controller_lease_age_seconds{{{NAMESERVER}, broker="a", cluster="c"}}': "1x30 60x90"},
        "Broker a of cluster c has no master",
        {**AT_NAMESERVER, "broker": "a", "cluster": "c"},
        quiet_at=30,
    ),
    Case(
        "MinimqMastersChange",
        {f'minimq_nameserver_controller_elections_total{{{NAMESERVER}, broker="a", cluster="c"}}': "1x30 7x90"},
        "Broker a changed its master 6 times in an hour",
        {**AT_NAMESERVER, "broker": "a", "cluster": "c"},
        quiet_at=30,
    ),
    Case(
        "MinimqCertificateExpires",
        {f"minimq_broker_certificate_expiry_timestamp_seconds{{{BROKER}}}": f"{15 * DAY}x60"},
        "The certificate of broker-a-0:9911 is valid for 13d 23h 0m 0s",
        at=50,
        quiet_at=47,
        step=30,
    ),
    Case(
        "MinimqSecretsRejected",
        {f"minimq_nameserver_secrets_rejected{{{NAMESERVER}}}": "0x30 1x90"},
        "nameserver-1:9912 cannot use the new files of --secrets",
        AT_NAMESERVER,
        quiet_at=30,
    ),
    Case(
        "MinimqRejections",
        {
            f'minimq_broker_unauthenticated_total{{{BROKER}, reason="unknown"}}': "0+60x200",
            f'minimq_broker_unauthenticated_total{{{BROKER}, reason="expired"}}': "0+60x200",
        },
        "broker-a-0:9911 turns away 2 calls a second that have no valid key",
        quiet_at=3,
    ),
)
