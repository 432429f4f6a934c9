"""A whole run at debug level, after which no secret may be in anything that it has left behind."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from support.key_search import files_with, found_in, note_keys, process_texts, secrets_under

#: Below pytest's temporary folder: event logs of Spark, and what tests have printed and logged.
_EVENTS, _OUTPUTS = "spark-events", "outputs.txt"
#: py4j logs whatever goes to the JVM, which is all that an application tells Spark; gRPC logs servers that are being
#: freed, which must not be kept as pytest keeps what is logged; asyncio logs each event loop, which no test expects.
_NOT_AT_DEBUG = ("py4j", "grpc", "asyncio")


class KeyRun:
    """A plugin of pytest. Each process of a parallel run searches what it has left behind itself."""

    def __init__(self) -> None:
        self._secrets: set[bytes] = set()
        self._shown: set[str] = set()
        self._folder: Path | None = None
        note_keys(self._secrets)
        logging.getLogger().setLevel(logging.DEBUG)
        for library in _NOT_AT_DEBUG:
            logging.getLogger(library).setLevel(logging.INFO)
        for server in ("BROKER", "NAMESERVER"):
            os.environ[f"MINIMQ_{server}_LOG_LEVEL"] = "debug"

    def begin(self, folder: Path) -> None:
        """Have Spark write its event logs below pytest's temporary folder, where all else is."""
        self._folder = folder
        events = folder / _EVENTS
        events.mkdir()
        spark = {"enabled": "true", "dir": events.as_uri(), "compress": "false"}
        options = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in spark.items())
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{options} pyspark-shell"

    def end(self) -> None:
        """Fail if a secret was found."""
        assert self._folder is not None
        self._secrets |= secrets_under(self._folder)
        found = [*map(str, files_with(self._folder, self._secrets)), *sorted(self._shown)]
        if found:
            pytest.fail("\n".join(["secrets were found in", *found]), pytrace=False)
        print(f"none of {len(self._secrets)} secrets was found below {self._folder}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test has printed and logged."""
        if self._folder is not None:
            with (self._folder / _OUTPUTS).open("a") as file:
                file.writelines(f"{report.nodeid}: {name}\n{text}\n" for name, text in report.sections)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Look at the processes while those of the test run."""
        if any(found_in(text, self._secrets) for text in process_texts()):
            self._shown.add(f"a process of {item.nodeid}")
