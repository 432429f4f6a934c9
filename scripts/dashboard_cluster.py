"""The dashboard of a cluster: the health of all servers."""

from __future__ import annotations

from dashboard_panels import JOB, Dashboard, one, rate, stat

CLUSTER = Dashboard(
    uid="minimq-cluster",
    title="minimq: cluster",
    says="All servers of a cluster: whether they are well, what goes in and out, and how quickly.",
    variables=(),
    rows=(
        (
            "Now",
            (
                stat("Servers that answer", "short", "Servers whose metrics can be read.", f"sum(up{{{JOB}}})"),
                stat(
                    "Servers that do not",
                    "short",
                    "Servers that are down, or whose metrics cannot be read: the alert MinimqServerDown.",
                    f"count(up{{{JOB}}} == 0) or vector(0)",
                ),
                stat(
                    "Alerts",
                    "short",
                    "Alerts that fire now; the page Alerts of Prometheus has their runbooks.",
                    f'count(ALERTS{{{JOB}, alertstate="firing"}}) or vector(0)',
                ),
                stat(
                    "Masters without a replica",
                    "short",
                    "Masters which no other replica is in sync with: nobody can take over.",
                    f"count(minimq_broker_in_sync_replicas{{{JOB}}} < 2) or vector(0)",
                ),
                stat(
                    "Brokers offline",
                    "short",
                    "Brokers that a name server remembers and misses: minimq cluster status.",
                    f"max(sum by (instance) (minimq_nameserver_brokers_offline{{{JOB}}})) or vector(0)",
                ),
                stat(
                    "First certificate ends in",
                    "s",
                    "Time until the certificate of a server expires: minimq secure renew.",
                    "min(minimq_broker_certificate_expiry_timestamp_seconds"
                    f"{{{JOB}}} or minimq_nameserver_certificate_expiry_timestamp_seconds{{{JOB}}}) - time()",
                ),
            ),
        ),
        (
            "Traffic",
            (
                one(
                    "Messages in", "cps", "Messages that producers had stored.", rate("minimq_broker_messages_in_total")
                ),
                one(
                    "Messages out",
                    "cps",
                    "Messages that were sent to readers.",
                    rate("minimq_broker_messages_out_total"),
                ),
                one("Bytes in", "Bps", "Bytes of stored batches, compressed.", rate("minimq_broker_bytes_in_total")),
                one("Bytes out", "Bps", "Bytes of batches sent to readers.", rate("minimq_broker_bytes_out_total")),
                one(
                    "Rejected batches",
                    "cps",
                    "By the code of the error that producers get.",
                    f"sum by (reason) ({rate('minimq_broker_appends_rejected_total')})",
                    "{{reason}}",
                ),
                one(
                    "Look-ups of routes",
                    "cps",
                    "Clients look a topic up once, then watch it: many look-ups mean many new clients.",
                    rate("minimq_nameserver_lookups_total"),
                ),
            ),
        ),
        (
            "Speed",
            (
                one(
                    "Append, 99 %",
                    "s",
                    "99 of 100 batches are answered within this time; it includes the disk and the replicas.",
                    f"instance:minimq_broker_append_seconds:p99_5m{{{JOB}}}",
                ),
                one(
                    "Commit, 99 %",
                    "s",
                    "99 of 100 commits are written and synced within this time: the speed of the disk.",
                    f"instance:minimq_broker_commit_seconds:p99_5m{{{JOB}}}",
                ),
                one(
                    "Delay of the event loop, 99 %",
                    "s",
                    "How late a server comes to its work, which clients see as latency.",
                    f"instance:minimq_broker_event_loop_lag_seconds:p99_5m{{{JOB}}} or "
                    f"instance:minimq_nameserver_event_loop_lag_seconds:p99_5m{{{JOB}}}",
                ),
                one(
                    "CPU",
                    "percentunit",
                    "1 is one core, the most that Python uses but for disk and network.",
                    rate("process_cpu_seconds_total"),
                ),
                one("Memory", "bytes", "Resident memory of each server.", f"process_resident_memory_bytes{{{JOB}}}"),
                one(
                    "Disk used",
                    "percentunit",
                    "Share of the disk that all programs use; brokers delete early, then reject, when it is full.",
                    f"minimq_broker_disk_used_ratio{{{JOB}}}",
                ),
            ),
        ),
        (
            "Replicas",
            (
                one(
                    "Roles",
                    "short",
                    "What each broker is: alone, master, slave, or undecided.",
                    f"minimq_broker_info{{{JOB}}} "
                    f"* on (job, instance) group_left (role) (minimq_broker_role{{{JOB}}} == 1)",
                    "{{broker}}-{{id}}",
                    "table",
                ),
                one(
                    "Replicas in sync",
                    "short",
                    "Of each master, itself included; below --min-in-sync it rejects messages.",
                    f"minimq_broker_in_sync_replicas{{{JOB}}}",
                ),
                one(
                    "Lag of replicas",
                    "bytes",
                    "Bytes of its master's log that a slave lacks.",
                    f"minimq_broker_replica_lag_bytes{{{JOB}}}",
                    "{{instance}} to {{replica}}",
                ),
                one(
                    "Elections",
                    "short",
                    "Masters elected within an hour.",
                    f"increase(minimq_nameserver_controller_elections_total{{{JOB}}}[1h])",
                    "{{broker}}",
                ),
                one(
                    "Calls without a valid key",
                    "cps",
                    "By what is wrong with the key; the logger minimq.audit names the callers.",
                    f"sum by (reason) ({rate('minimq_broker_unauthenticated_total')} or "
                    f"{rate('minimq_nameserver_unauthenticated_total')})",
                    "{{reason}}",
                ),
            ),
        ),
    ),
)
