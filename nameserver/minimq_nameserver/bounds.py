"""Bounds on all that a name server holds, whatever brokers and clients send. Pure.

It is a small process that everybody depends on: all of these together stay below 512 MB. What would go beyond is
refused with a text that says so, and everybody who has a place keeps it.
"""

from __future__ import annotations

#: Topics that have a route.
MAX_ROUTED_TOPICS = 50_000
#: Topics of all brokers together; one that ten brokers carry counts ten times.
MAX_CARRIED = 500_000
#: Registered brokers, slaves among them.
MAX_REGISTERED_BROKERS = 1_000
#: Topics of all brokers together that are away and remembered.
MAX_AWAY_TOPICS = 50_000

#: Streams of clients that watch routes.
MAX_WATCHERS = 4_000
#: Topics of all watchers together; one that ten clients watch counts ten times.
MAX_WATCHED_BY_ALL = 300_000

#: Connections, and calls and streams on each.
MAX_CONNECTIONS = 5_000
MAX_STREAMS_OF_A_CONNECTION = 32
#: Bytes of the largest request: the table of a broker, or the topics of a watcher.
MAX_TABLE_BYTES = 3 << 20
#: Bytes of the largest answer, which lists the routes of all topics.
MAX_ANSWER_BYTES = 32 << 20
#: Bytes of large answers and routes, on their way to all clients together.
MAX_UNSENT_BYTES = 96 << 20

#: Replica sets that a controller has a record of.
MAX_REPLICA_SETS = 1_000
#: Others from which reports came lately.
MAX_BOOTSTRAPS = 1_000
#: Reports whose answers are held back; further ones are answered at once.
MAX_HELD_REPORTS = 2_000
