"""The dashboard of topics and groups: stored messages, lag and work queues."""

from __future__ import annotations

from dashboard_panels import JOB, Dashboard, Panel, one, quantiles, rate

TOPIC = f'{JOB}, topic=~"$topic"'
GROUP = f'{JOB}, group=~"$group"'
BOTH = f'{JOB}, group=~"$group", topic=~"$topic"'
#: Only the leading replica: slaves export the metrics of groups and topics, too.
LEADS = f"and on (job, instance) (instance:minimq_broker_leads{{{JOB}}} == 1)"

TOPICS = Dashboard(
    uid="minimq-topics",
    title="minimq: topics and groups",
    says="What is stored in topics, how far groups are, and what waits: over all brokers of a cluster.",
    variables=(
        ("topic", f"label_values(minimq_broker_topic_messages{{{JOB}}}, topic)"),
        ("group", f"label_values(minimq_broker_group_lag_messages{{{JOB}}}, group)"),
    ),
    rows=(
        (
            "Topics",
            (
                one(
                    "Messages in",
                    "cps",
                    "Messages that were stored in each topic, on average over 5 minutes.",
                    f"topic:minimq_broker_topic_messages_in:rate5m{{{TOPIC}}}",
                    "{{topic}}",
                ),
                one(
                    "Stored messages",
                    "short",
                    "Messages that each topic holds; retention and compaction remove them.",
                    f"topic:minimq_broker_topic_messages:sum{{{TOPIC}}}",
                    "{{topic}}",
                ),
            ),
        ),
        (
            "Groups",
            (
                one(
                    "Lag",
                    "short",
                    "Messages that a group has not committed. It grows: start more members, or find the slow one with "
                    "minimq group describe GROUP.",
                    f"group_topic:minimq_broker_group_lag_messages:sum{{{BOTH}}}",
                    "{{group}}: {{topic}}",
                ),
                one(
                    "Growth of the lag",
                    "cps",
                    "Above 0 a group falls back, below it catches up.",
                    f"deriv(group_topic:minimq_broker_group_lag_messages:sum{{{BOTH}}}[15m])",
                    "{{group}}: {{topic}}",
                ),
                one(
                    "Members",
                    "short",
                    "Members of each group, as the broker sees it that knows most of them.",
                    f"max by (group) (minimq_broker_group_members{{{GROUP}}})",
                    "{{group}}",
                ),
                one(
                    "In flight",
                    "short",
                    "Messages of work queues that consumers have taken and not acknowledged.",
                    f"sum by (group, topic) (minimq_broker_group_in_flight_messages{{{BOTH}}} {LEADS})",
                    "{{group}}: {{topic}}",
                ),
                one(
                    "Dead letters",
                    "short",
                    "Messages that a group could not process: minimq dlq describe GROUP.",
                    f"group:minimq_broker_dead_letters:sum{{{GROUP}}}",
                    "{{group}}",
                ),
                Panel(
                    "Messages lost to groups",
                    "short",
                    "Within an hour: dead letters that were deleted, and messages of work queues that were deleted "
                    "before they were acknowledged.",
                    (
                        (f"sum(increase(minimq_broker_dead_letters_deleted_total{{{JOB}}}[1h]))", "dead letters"),
                        (f"sum(increase(minimq_broker_group_missed_messages_total{{{JOB}}}[1h]))", "work queues"),
                    ),
                ),
            ),
        ),
        (
            "Delayed messages",
            (
                one(
                    "Waiting",
                    "short",
                    "Delayed messages that are not due yet.",
                    f"minimq_broker_delayed_messages{{{JOB}}} {LEADS}",
                ),
                Panel(
                    "Stored, published, recalled",
                    "cps",
                    "What happens to delayed messages, over all brokers.",
                    tuple(
                        (f"sum({rate(f'minimq_broker_delayed_{what}_total')})", what)
                        for what in ("stored", "published", "recalled")
                    ),
                ),
                Panel(
                    "Lateness",
                    "s",
                    "Time from the moment at which a delayed batch was due to its storage in its queue.",
                    quantiles("minimq_broker_delayed_late_seconds", JOB),
                ),
            ),
        ),
        (
            "Transactions, requests",
            (
                Panel(
                    "Transactions with half messages",
                    "short",
                    "Those that have not ended, and those to be decided by hand: minimq transaction list.",
                    (
                        (f"sum(minimq_broker_half_transactions{{{JOB}}} {LEADS})", "open"),
                        (f"sum(minimq_broker_half_transactions_undecided{{{JOB}}} {LEADS})", "undecided"),
                    ),
                ),
                one(
                    "Ends of these",
                    "cps",
                    "By the outcome: committed, rolled back, or expired.",
                    f"sum by (outcome) ({rate('minimq_broker_half_transactions_ended_total')})",
                    "{{outcome}}",
                ),
                one(
                    "Staged bytes",
                    "bytes",
                    "Batches of transactions that readers do not see yet; idle ones expire when the room is full.",
                    f"minimq_broker_staged_bytes{{{JOB}}} {LEADS}",
                ),
            ),
        ),
    ),
)
