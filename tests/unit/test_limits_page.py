"""docs/limits.md tells the numbers that servers go by."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor

from minimq.sending.producer_options import ProducerOptions
from minimq_broker.assembly import BrokerOptions
from minimq_broker.backup import copying
from minimq_broker.calls import limits, pull
from minimq_broker.features.search import finding
from minimq_broker.features.work_queues import pop_runs, work_queue_clients, work_queue_service
from minimq_broker.groups import groups, offsets
from minimq_broker.groups import lease_service as leases
from minimq_broker.log import clock
from minimq_common import model, names
from minimq_common.batch import compression
from minimq_common.batch import header as batch
from minimq_common.security import access_document, access_rule
from minimq_common.wire import channels, dispatcher, protocol_bounds, rpc
from minimq_nameserver import bounds
from minimq_proto.v1 import broker_pb2, nameserver_pb2, options_pb2, staged_pb2
from support.bounds import max_items
from support.cases import for_each
from support.limit_rows import limit_rows

OPTIONS = BrokerOptions(data_dir=Path("unused"))
LIMITS = limits.Limits(OPTIONS.max_body_bytes, OPTIONS.max_batch_bytes)
SERVER = dict(rpc.SERVER_OPTIONS)


STAGED = staged_pb2.DESCRIPTOR.services_by_name["Staged"]
NAMESERVER = nameserver_pb2.DESCRIPTOR.services_by_name["NameServer"]


def mib(number: int) -> str:
    return f"{number >> 20} MiB"


def request_bytes(service: ServiceDescriptor, method: str) -> int:
    return service.methods_by_name[method].GetOptions().Extensions[options_pb2.request_bytes]


def seconds(*options: str) -> str:
    """Return the sum of some options of gRPC."""
    return f"{sum(SERVER[option] for option in options) // 1_000} s"


@for_each(
    ("section", "what", "told"),
    [
        ("Names and texts", "topic |", f"{names.MAX_TOPIC} characters"),
        ("Names and texts", "consumer group |", f"{names.MAX_GROUP} characters"),
        ("Names and texts", "broker, cluster", f"{names.MAX_BROKER} characters"),
        ("Names and texts", "client id |", f"{names.MAX_CLIENT_ID} characters"),
        ("Names and texts", "name in a rule |", f"{access_rule._MAX_LETTERS} characters"),
        ("Names and texts", "address |", f"{names.MAX_ADDRESS} characters"),
        ("Names and texts", "filter of a topic", f"{protocol_bounds.MAX_FILTER:,} characters"),
        ("Names and texts", "different topics and filters", f"{protocol_bounds.MAX_AGREED:,} characters"),
        ("Messages", "body |", mib(OPTIONS.max_body_bytes)),
        ("Messages", "body |", mib(ProducerOptions().max_body_bytes)),
        ("Messages", "tag |", f"{batch.MAX_TAG} characters"),
        ("Messages", "keys of a message", f"{batch.MAX_METADATA:,} characters"),
        ("Messages", "keys of a message", f"{batch.MAX_METADATA_BYTES:,} bytes"),
        ("Messages", "properties of a message", f"{batch.MAX_METADATA:,} characters"),
        ("Messages", "properties of a message", f"{batch.MAX_METADATA_BYTES:,} bytes"),
        ("Messages", "properties of a message", f"{batch.MAX_METADATA + 1:,} properties"),
        ("Messages", "messages of a batch", f"{ProducerOptions().batch_messages:,}"),
        ("Messages", "messages of a batch", f"{batch.MAX_RECORDS:,}"),
        ("Messages", "bodies of a batch", mib(ProducerOptions().batch_bytes)),
        ("Messages", "different tags of a batch", f"{batch.MAX_TAGS:,}"),
        ("Messages", "different tags of a batch", f"{batch.MAX_TAG_HASHES} "),
        ("Messages", "batch |", mib(OPTIONS.max_batch_bytes)),
        ("Messages", "transaction of a producer", mib(protocol_bounds.MAX_ATOMIC_BYTES)),
        ("Messages", "transaction of a producer", f"{protocol_bounds.MAX_ATOMIC_BATCHES:,} batches"),
        ("Messages", "content of a compressed batch", mib(compression.MAX_CONTENT_BYTES)),
        ("Lists in one request", "queues that a member requests", f"{max_items(broker_pb2.AcquireQueues, 'queues'):,}"),
        ("Lists in one request", "topics that a consumer", f"{protocol_bounds.MAX_SUBSCRIPTIONS:,}"),
        ("Lists in one request", "tags in the filter", f"{protocol_bounds.MAX_TAGS:,}"),
        ("Lists in one request", "queues of a topic", f"{model.MAX_QUEUES:,}"),
        ("Lists in one request", "brokers that take part", f"{max_items(staged_pb2.Decision, 'broker_names'):,}"),
        ("Lists in one request", "parts of a transaction", f"{max_items(staged_pb2.Decision, 'parts'):,}"),
        ("Lists in one request", "batches of one producer", f"{protocol_bounds.MAX_SEQUENCES:,}"),
        ("Lists in one request", "request that is not part", mib(dispatcher.MAX_REQUEST_BYTES)),
        ("Lists in one request", "decision on a transaction", mib(request_bytes(STAGED, "CommitTransaction"))),
        ("Lists in one request", "`access.toml`", mib(access_document.MAX_DOCUMENT_BYTES)),
        ("Lists in one request", "keys of a user", f"{access_document._MAX_KEYS}; "),
        ("Lists in one request", "request of a stream", mib(dispatcher.MAX_REQUEST_BYTES)),
        ("Per broker", "calls that have come", f"{SERVER['grpc.server.max_pending_requests']:,} |"),
        ("Per broker", "calls that have come", f"{SERVER['grpc.server.max_pending_requests_hard_limit']:,} |"),
        ("Per name server", "calls that have come", f"{SERVER['grpc.server.max_pending_requests']:,} |"),
        ("Per name server", "calls that have come", f"{SERVER['grpc.server.max_pending_requests_hard_limit']:,} |"),
        ("Per broker", "topics |", f"{LIMITS.max_topics:,} |"),
        ("Per broker", "consumer groups |", f"{LIMITS.max_groups:,} |"),
        ("Per broker", "consumers with a session", f"{LIMITS.max_sessions:,} |"),
        ("Per broker", "subscriptions of all members", f"{groups.MAX_SUBSCRIBED >> 20} Mi characters"),
        ("Per broker", "members of a group", f"{groups.MAX_MEMBERS:,}"),
        ("Per broker", "queues that members of a group report", f"{groups.MAX_HELD_OF_GROUP:,}; {groups.MAX_HELD:,}"),
        ("Per broker", "queues that a member requests", f"{leases.MAX_OF_MEMBER:,}; {leases.MAX_WANTED:,}"),
        ("Per broker", "committed offsets", f"{offsets.MAX_OFFSETS:,}"),
        ("Per broker", "streams of one kind", f"{limits.MAX_STREAMS:,} |"),
        ("Per broker", "searches under way", str(finding.MAX_FINDS)),
        ("Per broker", "pulls of one stream", f"{pull.MAX_PULLS:,}"),
        ("Per broker", "takes and settles of one stream", f"{work_queue_service.MAX_PENDING_STEPS:,}"),
        (
            "Per broker",
            "consumers of one such stream",
            f"{work_queue_clients.MAX_CLIENTS:,}; {work_queue_clients.MAX_TOPICS:,}",
        ),
        ("Per broker", "ranges of messages that are settled", f"{work_queue_service.MAX_PENDING_SPANS:,}"),
        ("Per broker", "messages of one work queue", f"{pop_runs.MAX_HELD:,}"),
        ("Per broker", "states of unsettled messages", f"{pop_runs.MAX_BITMAPS:,} of one"),
        ("Per broker", "states of unsettled messages", f"{work_queue_service.MAX_BITMAPS_IN_ALL:,} of all"),
        ("Per broker", "time until the first request", f"{dispatcher.FIRST_REQUEST_S:g} s"),
        ("Per broker", "time until the request of a call", f"{dispatcher.REQUEST_S:g} s"),
        ("Per broker", "concurrent calls", f"{SERVER['grpc.max_concurrent_streams']}"),
        ("Per broker", "concurrent calls", f"each {channels.STREAMS_PER_CHANNEL} streams"),
        ("Per broker", "streams of one `Cluster`", f"{channels.MAX_STREAMS:,}"),
        ("Per broker", "time for the handshake", seconds("grpc.server_handshake_timeout_ms")),
        ("Per broker", "time without any sign", seconds("grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms")),
        ("Per broker", "connections |", f"{limits.MAX_CONNECTIONS:,}; fewer"),
        ("Per broker", "answers that clients", f"{mib(LIMITS.max_unsent_bytes)} |"),
        ("Per broker", "concurrent copies of its log", f"{copying.MAX_COPIES}"),
        ("Per broker", "jump of the clock", f"{clock.MAX_JUMP_S / 3600:g} h |"),
        ("Per name server", "topics of one broker", f"{protocol_bounds.MAX_TOPICS:,}"),
        ("Per name server", "topics of one broker", mib(bounds.MAX_TABLE_BYTES)),
        ("Per name server", "topics with a route", f"{bounds.MAX_ROUTED_TOPICS:,}"),
        ("Per name server", "topics of all brokers", f"{bounds.MAX_CARRIED:,}"),
        ("Per name server", "registered brokers", f"{bounds.MAX_REGISTERED_BROKERS:,}"),
        ("Per name server", "topics of brokers that are offline", f"{bounds.MAX_OFFLINE_TOPICS:,}"),
        ("Per name server", "clients that watch routes", f"{bounds.MAX_WATCHERS:,}"),
        ("Per name server", "topics that one client watches", f"{protocol_bounds.MAX_WATCHED:,}"),
        ("Per name server", "topics that all clients watch", f"{bounds.MAX_WATCHED_BY_ALL:,}"),
        ("Per name server", "a call, other than", f"{request_bytes(NAMESERVER, 'GetRoutes') >> 10} KiB"),
        ("Per name server", "the routes of all topics", mib(bounds.MAX_ANSWER_BYTES)),
        ("Per name server", "large answers and routes", mib(bounds.MAX_UNSENT_BYTES)),
        ("Per name server", "connections, and concurrent calls", f"{bounds.MAX_CONNECTIONS:,}"),
        ("Per name server", "connections, and concurrent calls", f"{bounds.MAX_STREAMS_OF_A_CONNECTION}"),
        ("Per name server", "replica sets of its controller", f"{bounds.MAX_REPLICA_SETS:,}"),
        ("Per name server", "replica reports held", f"{bounds.MAX_HELD_REPORTS:,}"),
    ],
)
def test_the_page_tells_the_number(section: str, what: str, told: str) -> None:
    [row] = [row for row in limit_rows(section) if row.startswith(f"| {what}")]
    _, _, most = row.partition(" | ")
    assert most.startswith(told) or f" {told}" in most
