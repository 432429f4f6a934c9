"""Times: every call takes the same kinds, and a machine far from Greenwich skips nothing in silence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from minimq.admin.admin import Admin
from minimq.local.local_cluster import LocalCluster
from minimq.producer import Producer
from minimq_common.model import Message
from support.command import environment

EVERY_CALL = """
import sys
from datetime import UTC, datetime, timedelta

from minimq import Admin, PullConsumer, PushConsumer
from minimq.consuming.queue_finder import QueueFinder
from pyspark_minimq.option_values import moment

nameserver, topic, group = sys.argv[1:]
admin, finder = Admin(nameserver), QueueFinder(nameserver)
queue = admin.describe_topic(topic).queues[0].queue
assigned = PullConsumer(nameserver, group=group + "-assigned", auto_commit=False)
assigned.assign([queue])
number = 0


def begin(start):
    global number
    number += 1
    with PullConsumer(nameserver, group=f"{group}-{number}", start=start) as consumer:
        consumer.assign([queue])
        return consumer.position(queue)


def push(start):
    PushConsumer(nameserver, group=group + "-push", start=start).close()


def seek(to):
    assigned.seek(queue, to)
    return assigned.position(queue)


def reset(to):
    return admin.reset_offset(group + "-reset", topic, to, queues=[queue], force=True)[queue]


def spark(when):
    return finder.offsets_at([queue], moment("startingTimestamp", str(when)))[queue]


calls = {
    "start": begin, "push": push, "seek": seek, "reset": reset, "spark": spark,
    "offset_at": lambda when: admin.offset_at(queue, when),
    "offsets_at": lambda when: finder.offsets_at([queue], when)[queue],
}
aware = datetime.now().astimezone() - timedelta(hours=1)
assert aware.tzname() == "JST"
times = [aware, aware.astimezone(UTC), aware.isoformat(), "-1h", f"{int(aware.timestamp() * 1000)}ms"]
for name, call in calls.items():
    for when in times:
        assert call(when) in (0, None), (name, when)
    if name in {"spark", "offset_at", "offsets_at"}:
        assert call(aware + timedelta(hours=2)) == 1, name
    else:  # nobody begins in the future
        try:
            print(name, "took the future", call(aware + timedelta(hours=2)))
        except Exception as error:
            assert "in the future" in str(error), error
    for naive in (aware.replace(tzinfo=None), aware.replace(tzinfo=None).isoformat()):
        try:
            print(name, "took", naive, call(naive))
        except Exception as error:
            assert "no time zone" in str(error), error
assigned.close()
"""


def test_every_call_takes_the_same_times_and_guesses_no_time_zone(
    cluster: LocalCluster, admin: Admin, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    admin.create_topic(topic, queues=1, brokers=["broker-a"])
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"1"))
    done = subprocess.run(
        [sys.executable, "-c", EVERY_CALL, cluster.nameserver, topic, new_name()],
        env=environment(TZ="Asia/Tokyo"),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout == b""
