"""The part of an error that Spark shows, as Spark itself writes it down."""

from __future__ import annotations

import importlib
import sys

import pytest

from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import spark_errors


def test_a_package_that_is_missing_is_named_with_what_to_do() -> None:
    @spark_errors()
    def load() -> None:
        importlib.import_module("no_such_package_of_minimq")

    with pytest.raises(MinimqSparkError) as caught:
        load()
    text = str(caught.value)
    assert "No module named 'no_such_package_of_minimq'" in text
    assert f"install minimq[spark] for {sys.executable}" in text
