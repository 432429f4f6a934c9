"""Bounds on everything that a name server keeps in memory, whatever brokers and clients send."""

from __future__ import annotations

MAX_ROUTED_TOPICS = 50_000
#: Topics of all brokers together; a topic that ten brokers carry counts ten times.
MAX_CARRIED = 500_000
#: Includes slaves.
MAX_REGISTERED_BROKERS = 1_000
#: Remembered brokers that are offline: enough for a cluster that loses a site.
MAX_OFFLINE_BROKERS = 100
#: Remembered topics of all brokers that are offline.
MAX_OFFLINE_TOPICS = 50_000

MAX_WATCHERS = 4_000
#: Topics of all watchers together; a topic that ten clients watch counts ten times.
MAX_WATCHED_BY_ALL = 300_000

MAX_CONNECTIONS = 5_000
#: Concurrent calls, including streams.
MAX_STREAMS_OF_A_CONNECTION = 32
#: Maximum size of a request: the topic table of a broker, or the topics of a watcher.
MAX_TABLE_BYTES = 3 << 20
#: Maximum size of an answer: the routes of all topics.
MAX_ANSWER_BYTES = 32 << 20
#: Large answers and events that clients have not read yet, of all clients together.
MAX_UNSENT_BYTES = 96 << 20

#: Replica sets with a record.
MAX_REPLICA_SETS = 1_000
#: Reporting replica sets without a record.
MAX_BOOTSTRAPS = 1_000
#: Reports whose answers are held back. Beyond this, the oldest one is answered at once.
MAX_HELD_REPORTS = 2_000
