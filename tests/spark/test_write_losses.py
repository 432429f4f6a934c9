"""What a write says of rows that cannot be stored, and of what is lost; without Spark, as in test_write_endings.py."""

from __future__ import annotations

import pyarrow as pa
import pytest

from minimq import LocalCluster
from pyspark_minimq.errors import MinimqSourceError
from pyspark_minimq.option_table import Mode
from pyspark_minimq.sink import MinimqBatchWriter
from pyspark_minimq.write_options import parse_write_options


def test_a_body_over_the_limit_of_the_broker(cluster: LocalCluster, topic: str) -> None:
    options = {"nameserver": cluster.nameserver, "topic": topic, "maxBodyBytes": "8m"}
    writer = MinimqBatchWriter(parse_write_options(options, Mode.BATCH))
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"x", bytes(5 << 20)])})
    with pytest.raises(MinimqSourceError) as caught:
        writer.write(iter([rows]))
    assert str(caught.value) == (
        f"column 'body' is too large in a row for topic {topic}: a message body has 5242880 bytes, the limit of this "
        "broker is 4194304; split it, or raise --max-body-bytes of the brokers"
    )
