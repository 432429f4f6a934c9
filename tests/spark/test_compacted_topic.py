"""Spark reads a compacted topic as it is, and the query of the documentation gives its current table."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from minimq import Admin, Compaction, LocalCluster, Message, Producer
from support.scraping import Scrape, metrics_address
from support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/compacted-topics.md"


@pytest.mark.timeout(300)
def test_the_table_is_that_of_a_dictionary(spark: SparkSession, tmp_path: Path, new_name: Callable[[], str]) -> None:
    chance, table = random.Random(5), dict[str, bytes]()
    messages = []
    for number in range(4000):
        key = f"N{chance.randrange(300)}"
        table[key] = b"" if chance.random() < 0.1 else b"%d" % number + bytes(300)
        messages.append(Message("planes", table[key], keys=(key,)))
    options = {"segment_bytes": 1 << 18, "checkpoint_interval_s": 0.05, "compaction_check_s": 0.05}
    shown = {"metrics": "127.0.0.1:0", "log_format": "json", "compaction_share": 1.0}
    with LocalCluster(brokers=1, data_dir=tmp_path / "data", broker_options=options | shown) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("plain", queues=1)
            admin.create_topic("planes", queues=3, compaction=Compaction(dirty_ratio=0.01))
        with Producer(cluster.nameserver) as producer:
            for first in range(0, len(messages), 100):
                producer.send_many(messages[first : first + 100])
        address = metrics_address(cluster.brokers[0].log_path)
        wait_until(lambda: Scrape(address).value("minimq_broker_compaction_removed_messages_total") > 1000, 30.0)
        names: dict[str, Any] = {"spark": spark, "nameserver": cluster.nameserver}
        for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(block, names)
        found = [{row["key"]: bytes(row["body"]) for row in names[name].collect()} for name in ("table", "made")]
        rows = names["table"].count()
        chosen = names["reader"].schema("OFFSET bigint, topic string").option("newest", "true").load()
        assert chosen.columns == ["OFFSET", "topic"]
        assert chosen.where("topic = 'planes'").count() == rows == len(found[0])
        with pytest.raises(PySparkException, match="topic plain is not compacted"):
            names["reader"].option("topic", "plain").load().count()
        changes = names["planes"]
        count, offsets = changes.count(), changes.select("offset").count()
    assert found == [{key: body for key, body in table.items() if body}] * 2
    assert count == offsets < 3000
