"""The part of an error that Spark shows, as Spark itself writes it down."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator

import pytest
from pyspark.util import handle_worker_exception

from minimq import MinimqError, errors
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.tracebacks import without_traceback


def shown(error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that a worker hands to Spark with its defaults."""
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    written = io.BytesIO()
    try:
        raise error
    except type(error) as raised:
        handle_worker_exception(raised, written)
    return written.getvalue()[8:].decode().splitlines()


def deep(error: Exception, depth: int = 20) -> None:
    if depth:
        deep(error, depth - 1)
    try:
        raise OSError("the noise below")
    except OSError:
        raise error  # noqa: B904 - what it came from is the noise


@without_traceback
def plan(error: Exception) -> None:
    deep(error)


@without_traceback
def read(error: Exception) -> Iterator[int]:
    yield 1
    deep(error)


@pytest.mark.parametrize(
    "error", [MinimqSparkError("topic t is gone: create it"), errors.Unavailable("broker-a gives no answer")]
)
def test_an_error_that_says_what_to_do_is_shown_without_where_it_was_raised(
    error: MinimqSparkError | MinimqError, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MinimqSparkError, match=f"^{error}$") as caught:
        plan(error)
    assert_shown_alone(caught.value, "call", monkeypatch)
    batches = read(error)
    assert next(batches) == 1
    with pytest.raises(MinimqSparkError, match=f"^{error}$") as caught:
        next(batches)
    assert_shown_alone(caught.value, "generate", monkeypatch)


def assert_shown_alone(error: Exception, frame: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(error, monkeypatch)
    assert lines[-1].endswith(f": {error}")
    frames = [line.rpartition(", in ")[2] for line in lines if line.startswith("  File ")]
    assert frames[2:] == [frame]  # the first two are those of this test
    assert "noise" not in "\n".join(lines)


def test_an_error_that_nobody_expects_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError) as caught:
        plan(KeyError("a mistake of ours"))
    text = "\n".join(shown(caught.value, monkeypatch))
    assert "in deep" in text
    assert "the noise below" in str(caught.value.__context__)


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
