"""The part of an error that Spark shows, as Spark itself writes it down."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.tracebacks import without_traceback


def test_a_package_that_is_missing_is_named_with_what_to_do() -> None:
    @without_traceback
    def load() -> None:
        importlib.import_module("no_such_package_of_minimq")

    with pytest.raises(MinimqSparkError) as caught:
        load()
    text = str(caught.value)
    assert "No module named 'no_such_package_of_minimq'" in text
    assert f"install minimq[spark] for {sys.executable}" in text


def test_what_reads_is_closed_when_spark_needs_no_more() -> None:
    ended = []

    @without_traceback
    def forever() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    batches = forever()
    assert next(batches) == 1
    batches.close()  # type: ignore[attr-defined]
    assert ended == [True]
