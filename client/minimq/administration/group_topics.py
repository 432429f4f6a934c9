"""The topics that belong to a consumer group."""

from __future__ import annotations

from minimq.administration.failures import raise_failures
from minimq.administration.masters import Masters
from minimq.connection.client import ClusterClient
from minimq.transport.client_log import client_logger
from minimq_common.model import Permission
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)


def make_group_topic(client: ClusterClient, topic: str, queues: int, timeout_s: float) -> None:
    """Create a topic of a group on all reachable masters. Masters that have it keep it unchanged."""
    wanted = broker_pb2.Topic(
        topic=topic, read_queues=queues, write_queues=queues, permission=int(Permission.READ_WRITE)
    )
    request = broker_pb2.CreateTopicRequest(topic=wanted, if_not_exists=True)
    masters = Masters(client)
    found = masters.find()
    answers, failures = client.call_all(found, lambda stub: stub.CreateTopic, request, timeout_s=timeout_s)
    if not answers:
        raise_failures(f"topic {topic} was not created", failures, found, "it will be retried")
    masters.wait_until_shown({broker: answer.data_version for broker, answer in answers.items()})
    log.info("consumer: topic is there topic=%s brokers=%s", topic, ", ".join(answers))
    client.routes.refresh(topic)
