"""Takes from a queue in the commit that writes to it: they hand out what it stores, and nothing else."""

from __future__ import annotations

import pytest

from minimq_broker.commit.commit_group import CommitGroup
from minimq_broker.commit.jobs import AppendJob
from minimq_broker.features.work_queues.pop_runs import PopKey, Take
from minimq_broker.features.work_queues.uncommitted_pops import AS_WRITTEN, PopJob, PopStep
from minimq_broker.log.entry import opened
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.state import State
from minimq_common.batch import header as batch
from minimq_common.errors import QueueNotFound
from support.stores import NO_LOG, make_batch

KEY = PopKey("g", 17, 0)


@pytest.fixture
def state() -> State:
    made = State()
    made.apply(TopicSet(Topic("orders", 17, 1, 1)), 100)
    return made


def append(queue_id: int, count: int) -> AppendJob:
    data = make_batch([b"x"] * count)
    return AppendJob("orders", queue_id, data, batch.read_header(data))


def taking(most: int) -> PopJob:
    return PopJob("g", (PopStep(1, KEY, Take("c", most, 10_000), (0, AS_WRITTEN)),), 1_000)


def taken(job: PopJob) -> list[tuple[int, int]]:
    return [(run.first, run.end) for run in job.steps[0].runs]


def test_a_take_gets_what_the_same_commit_writes_before_it(state: State) -> None:
    group = CommitGroup(state, state.position, 1_000)
    jobs = [taking(5), taking(2), taking(5), taking(5)]
    jobs[0].decide(group, NO_LOG)
    group.add_batch(append(0, 3))
    jobs[1].decide(group, NO_LOG)
    group.add_batch(append(0, 1))
    jobs[2].decide(group, NO_LOG)
    jobs[3].decide(group, NO_LOG)
    assert [taken(job) for job in jobs] == [[], [(0, 2)], [(2, 4)], []]
    for position, entry in group.entries:  # as a slave or a start reads it
        state.apply(opened(entry, position).effect, position + len(entry))
    assert [(run.first, run.end) for run in state.popped[KEY].runs] == [(0, 2), (2, 4)]


def test_what_is_rejected_is_not_handed_out(state: State) -> None:
    group = CommitGroup(state, state.position, 1_000)
    with pytest.raises(QueueNotFound):
        group.add_batch(append(1, 3))
    job = taking(5)
    job.decide(group, NO_LOG)
    assert taken(job) == []
    assert not group.entries
