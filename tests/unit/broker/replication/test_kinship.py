"""A slave goes on only in the log of its own replica set."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_broker.calls.engine import Engine
from minimq_broker.replication.follower import Follower, MasterRef
from minimq_broker.replication.term_lease import Confirmations
from minimq_common.errors import BrokerConflict
from minimq_common.replicas.replica_set import ReplicaReport
from minimq_proto.v1 import replication_pb2
from support.replica_engine import make_topic, with_engine

OWN = ReplicaReport(
    cluster="c",
    broker_name="broker-a",
    replica_id=1,
    run=7,
    address="127.0.0.1:1",
    founds=False,
    sync=False,
    min_in_sync=1,
)


@pytest.mark.parametrize("knows", ["both", "slave"])
def test_a_term_that_began_with_another_entry_is_of_another_log(tmp_path: Path, knows: str) -> None:
    """Copies of one log have one identity, and their terms may begin at the same position."""

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await make_topic(engine, 10)
        store, follower = engine.store, Follower(engine, MasterRef(OWN, 1, "127.0.0.1:1"), Confirmations(0))
        log_id = store.state.log_id if knows == "both" else ""
        [start] = store.state.terms
        [entry] = store.entries(start.position, 1)

        def frame(entry: bytes, log_id: str) -> replication_pb2.ReplicaFrame:
            term = replication_pb2.TermStart(term=start.term, position=start.position)
            go_on = replication_pb2.GoOn(position=store.end, term=term, term_entry=entry)
            return replication_pb2.ReplicaFrame(go_on=go_on, log_id=log_id)

        follower._check_same_log(frame(entry, log_id))
        with pytest.raises(BrokerConflict, match="its term 1 begins with another entry; give it the data directory of"):
            follower._check_same_log(frame(entry[:-1] + b"!", log_id))
        follower._check_same_log(frame(entry, "another"))
        with pytest.raises(BrokerConflict, match="begins with another entry"):
            follower._check_same_log(frame(entry[:-1] + b"!", "another"))

    with_engine(tmp_path, test)
