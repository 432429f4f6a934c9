"""A rejected row becomes a message whatever it has."""

from __future__ import annotations

import pyarrow as pa

from pyspark_minimq.writing import dead_letter

WRONG = b"\xff\xfe"


def wrong_text(*texts: bytes) -> pa.Array:
    return pa.array(texts, pa.binary()).cast(pa.string(), safe=False)


def test_text_that_is_no_utf8_is_readable() -> None:
    entries = pa.StructArray.from_arrays([pa.array(["region"]), wrong_text(WRONG)], ["key", "value"])
    row = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([None], pa.binary()),
            "tag": wrong_text(WRONG),
            "keys": pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), wrong_text(b"k", WRONG)),
            "headers": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries),
            "properties": pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["a"]), wrong_text(WRONG)),
            "queue_id": pa.array([-1]),
        }
    )
    letter = dead_letter(row, "column 'queue_id' is -1", 100)
    properties = dict(letter.column("properties")[0].as_py())
    assert letter.column("body")[0].as_py() == b""
    assert properties["rejected"] == "column 'queue_id' is -1"
    assert properties["queue_id"] == "-1"
    assert properties["tag"] == "base64://4="
    assert properties["keys"] == '["k", "\\ufffd\\ufffd"]'
    assert "region" in properties["headers"]
    assert properties["properties"] == '[["a", "\\ufffd\\ufffd"]]'
