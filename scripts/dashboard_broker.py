"""The dashboard of one broker."""

from __future__ import annotations

from dashboard_panels import JOB, Dashboard, Panel, one, quantiles, rate

HERE = f'{JOB}, instance="$instance"'

BROKER = Dashboard(
    uid="minimq-broker",
    title="minimq: one broker",
    says="Everything about one broker: its traffic, its disk, its clients and its replicas.",
    variables=(("instance", f"label_values(minimq_broker_info{{{JOB}}}, instance)"),),
    rows=(
        (
            "Traffic",
            (
                Panel(
                    "Messages",
                    "cps",
                    "Messages that were stored, and that were sent to readers.",
                    tuple((rate(f"minimq_broker_messages_{way}_total", HERE), way) for way in ("in", "out")),
                ),
                Panel(
                    "Bytes",
                    "Bps",
                    "Bytes of batches that were stored, and that were sent to readers.",
                    tuple((rate(f"minimq_broker_bytes_{way}_total", HERE), way) for way in ("in", "out")),
                ),
                Panel(
                    "Append",
                    "s",
                    "Time from the arrival of a batch to its answer; it includes the disk and the replicas.",
                    quantiles("minimq_broker_append_seconds", HERE),
                ),
                Panel(
                    "Rejected batches",
                    "cps",
                    "By the code of the error that producers get.",
                    ((rate("minimq_broker_appends_rejected_total", HERE), "{{reason}}"),),
                ),
            ),
        ),
        (
            "Disk",
            (
                Panel(
                    "Commit", "s", "Time to write and sync a commit.", quantiles("minimq_broker_commit_seconds", HERE)
                ),
                one(
                    "Messages in a commit",
                    "short",
                    "On average: a slow disk collects more messages in a commit, so that it keeps up.",
                    " / ".join(rate(f"minimq_broker_commit_messages_{what}", HERE) for what in ("sum", "count")),
                    "messages",
                ),
                one(
                    "Waiting for the disk",
                    "bytes",
                    "Bytes of batches that wait; at 64 MiB producers are slowed down.",
                    f"minimq_broker_pending_bytes{{{HERE}}}",
                    "pending",
                ),
                Panel(
                    "Space",
                    "bytes",
                    "What the log uses, and what is free on its disk.",
                    (
                        (f"minimq_broker_log_bytes{{{HERE}}}", "log"),
                        (f"minimq_broker_dead_letter_bytes{{{HERE}}}", "dead letters"),
                        (f"minimq_broker_disk_free_bytes{{{HERE}}}", "free"),
                    ),
                ),
                Panel(
                    "Files of the log",
                    "short",
                    "Files that are there, and that are known to be damaged.",
                    (
                        (f"minimq_broker_segments{{{HERE}}}", "files"),
                        (f"minimq_broker_damaged_segments{{{HERE}}}", "damaged"),
                    ),
                ),
                Panel(
                    "Cleaning",
                    "short",
                    "Within an hour: files that retention deleted, that were rewritten and verified.",
                    tuple(
                        (f"increase(minimq_broker_segments_{what}_total{{{HERE}}}[1h])", what)
                        for what in ("deleted", "rewritten", "verified")
                    ),
                ),
                one(
                    "Age of the checkpoint",
                    "s",
                    "A start after a crash reads the log again from there.",
                    f"minimq_broker_checkpoint_age_seconds{{{HERE}}}",
                    "age",
                ),
            ),
        ),
        (
            "Clients",
            (
                one(
                    "Streams",
                    "short",
                    "Open streams of clients, by the call.",
                    f"minimq_broker_streams{{{HERE}}}",
                    "{{call}}",
                ),
                Panel(
                    "Waiting for clients",
                    "bytes",
                    "Bytes that clients have not read.",
                    ((f"minimq_broker_unsent_bytes{{{HERE}}}", "unsent"),),
                ),
                one(
                    "Long polls",
                    "short",
                    "Pulls that wait for messages: consumers that have read all.",
                    f"minimq_broker_long_polls{{{HERE}}}",
                    "waiting",
                ),
                Panel(
                    "Rejected by limits",
                    "cps",
                    "By the limit of the broker, streams that are too many by their call, and connections closed.",
                    (
                        (f"{rate('minimq_broker_limit_rejections_total', HERE)} > 0", "{{limit}}"),
                        (f"{rate('minimq_broker_streams_rejected_total', HERE)} > 0", "streams: {{call}}"),
                    ),
                ),
                Panel(
                    "Rejected callers",
                    "cps",
                    "Calls without a valid key, and requests without the right; the logger minimq.audit names them.",
                    (
                        (rate("minimq_broker_unauthenticated_total", HERE), "key: {{reason}}"),
                        (rate("minimq_broker_denied_total", HERE), "right: {{verb}}"),
                    ),
                ),
            ),
        ),
        (
            "Process",
            (
                one(
                    "CPU",
                    "percentunit",
                    "1 is one core, the most that Python uses but for disk and network.",
                    rate("process_cpu_seconds_total", HERE),
                    "CPU",
                ),
                one(
                    "Memory",
                    "bytes",
                    "Resident memory; pages of the log that are mapped count as well.",
                    f"process_resident_memory_bytes{{{HERE}}}",
                    "resident",
                ),
                one("Open files", "short", "Files and connections.", f"process_open_fds{{{HERE}}}", "open"),
                Panel(
                    "Delay of the event loop",
                    "s",
                    "How late the broker comes to its work, which clients see as latency.",
                    quantiles("minimq_broker_event_loop_lag_seconds", HERE),
                ),
            ),
        ),
        (
            "Replicas",
            (
                one("Role", "short", "1 for the role of the broker.", f"minimq_broker_role{{{HERE}}} == 1", "{{role}}"),
                Panel(
                    "Replicas in sync",
                    "short",
                    "Of a master, itself included; below the minimum it rejects messages.",
                    (
                        (f"minimq_broker_in_sync_replicas{{{HERE}}}", "in sync"),
                        (f"minimq_broker_min_in_sync_replicas{{{HERE}}}", "minimum"),
                    ),
                ),
                Panel(
                    "Lag",
                    "bytes",
                    "Of a master: bytes that its slaves lack; of a slave: bytes that it lacks.",
                    (
                        (f"minimq_broker_replica_lag_bytes{{{HERE}}}", "replica {{replica}}"),
                        (f"minimq_broker_master_lag_bytes{{{HERE}}}", "this one"),
                        (f"minimq_broker_unconfirmed_bytes{{{HERE}}}", "unconfirmed"),
                    ),
                ),
                one(
                    "Lease",
                    "s",
                    "Remaining time of a master's lease, which it renews; at 0 it serves nobody.",
                    f"minimq_broker_lease_seconds{{{HERE}}}",
                    "remaining",
                ),
            ),
        ),
    ),
)
