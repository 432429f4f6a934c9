"""The sdist and the wheel, as users install them: they run alone, and type checkers see the types."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from support.packaging import ROOT, borrow_packages, build_sdist, build_wheel, install, make_environment

#: A program as a user writes it, in the strictest mode.
CORRECT = """\
import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import UTC, datetime

import minimq.aio
from minimq import (
    Admin,
    ConsumeResult,
    LocalCluster,
    Message,
    MessageQueue,
    MinimqError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendReceipt,
    by_hash,
    errors,
)


def told(receipt: SendReceipt | None, error: MinimqError | None) -> None:
    print(receipt.queue_offset if receipt is not None else error)


def listener(messages: list[ReceivedMessage]) -> ConsumeResult | RetryLater:
    bad = [index for index, message in enumerate(messages) if not message.body]
    return RetryLater(indexes=bad) if messages[0].delivery_count <= 3 else ConsumeResult.SUCCESS


def revoked(queues: Sequence[MessageQueue]) -> None:
    print(*queues)


def main() -> None:
    with LocalCluster(brokers=2, broker_options={"segment_bytes": 1 << 20}) as cluster:
        with Admin(cluster.nameserver, timeout_s=3) as admin:
            admin.create_topic("orders", queues=8)
        with Producer(cluster.nameserver, compression="zstd", send_timeout_s=3) as producer:
            message = Message("orders", b"espresso", tag="paid", keys=["o-17"], properties={"region": "eu"})
            future: Future[SendReceipt] = producer.send_async(message, callback=told)
            offset: int = future.result().queue_offset
            try:
                producer.send_many((message for _ in range(3)), selector=by_hash())
            except errors.SendFailed as error:
                print(error.code, offset)
        with PullConsumer(cluster.nameserver, group="billing", auto_commit=True, on_revoked=revoked) as consumer:
            consumer.subscribe("orders", "paid || refunded")
            bodies: list[bytes] = [message.body for message in consumer.poll(timeout=1)]
            print(bodies)
        pushed = PushConsumer(cluster.nameserver, group="tasks", start=datetime.now(UTC))
        pushed.start(listener)
        pushed.close()


async def async_main(nameserver: str) -> None:
    async with minimq.aio.Producer(nameserver, max_in_flight_requests=4) as producer:
        await (await producer.send_async(Message("orders", b"x")))
    async with minimq.aio.PullConsumer(nameserver, group="billing") as consumer:
        async for message in consumer:
            print(message.queue_offset)


if __name__ == "__main__":
    main()
    asyncio.run(async_main("127.0.0.1:9876"))
"""

#: Each line but the imports has one mistake.
WRONG = """\
import minimq.aio
from minimq import Admin, ConsumeResult, LocalCluster, Message, Producer, PullConsumer, PushConsumer, RetryLater
Producer(send_timeout=3)
Producer(max_in_flight_requests="8")
Producer(compression="gzip")
PullConsumer(group="g", prefetch_message=1)
PullConsumer(group="g", offset_reset="first")
PullConsumer(group="g", batch_size=1)
PushConsumer(group="g", max_retries=3)
PushConsumer(group="g").start(lambda messages: None)
minimq.aio.Producer(linger_ms=3)
minimq.aio.PullConsumer(group="g", autocommit=False)
minimq.aio.PushConsumer(group="g", thread=3)
Admin(timeout=3)
Admin().create_topic("orders", queue=3)
Message("orders", b"x", key="o-17")
Message("orders", "x")
LocalCluster(broker=2)
ConsumeResult.SUCESS
RetryLater(frist=3)
RetryLater(indexes=3)
PullConsumer(group="g").granted
Producer().send(Message("orders", b"x")).offset
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, as packagers do: a file that the sdist lacks is missed here."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [source] = folder.iterdir()
    return build_wheel(folder / "built", source)


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project of its own, in whose environment the wheel is installed beside what it depends on."""
    folder = tmp_path_factory.mktemp("project")
    packages = make_environment(folder / ".venv")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    borrow_packages(packages)
    return folder


def test_every_package_of_the_wheel_says_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.split("/")[0] for name in names if name.endswith(".py")}
    assert packages >= {"minimq", "minimq_common"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)


@pytest.mark.slow
def test_a_package_index_accepts_the_sdist_and_the_wheel(sdist: Path, wheel: Path) -> None:
    check = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_ten_lines_of_the_readme_run_with_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    """Neither the checkout nor any package that the wheel does not ask for can be imported."""
    install(wheel, make_environment(tmp_path / ".venv"))
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "ten_lines.py").write_text(found[1])
    done = subprocess.run(
        [".venv/bin/python", "ten_lines.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"orders/broker-[ab]/[0-7] 0", first)
    assert second == "[b'espresso']"


@pytest.mark.slow
def test_type_checkers_accept_what_is_right_and_find_each_mistake(project: Path) -> None:
    (project / "correct.py").write_text(CORRECT)
    (project / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--hide-error-context"),
            f"--python-executable={project / '.venv/bin/python'}",
            *("correct.py", "wrong.py"),
        ],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert not done.stderr
    errors = re.findall(r"^(\w+\.py):(\d+): error: .*$", done.stdout, re.MULTILINE)
    mistakes = [("wrong.py", str(number)) for number in range(3, len(WRONG.splitlines()) + 1)]
    assert sorted(set(errors)) == sorted(mistakes), done.stdout


#: Finds the format as Spark does, and copies a reader as it is copied to tasks.
FROM_ZIP = """\
import pkgutil
import sys
from importlib import import_module

from pyspark import cloudpickle

assert "pyspark_minimq" in {module.name for module in pkgutil.iter_modules()}
source = import_module("pyspark_minimq").DefaultSource({"topic": "t"})
reader = source.reader(source.schema())
copied = cloudpickle.loads(cloudpickle.dumps(reader))
assert type(copied) is type(reader), "classes are copied, not named"
for name in ("minimq.arrow", "pyspark_minimq.readers", "pyspark_minimq.stream_planning", "pyspark_minimq.sink"):
    print(import_module(name).__file__)
"""


@pytest.mark.slow
def test_spark_may_send_the_wheel_as_a_zip_file(wheel: Path, tmp_path: Path) -> None:
    archive = shutil.copy(wheel, tmp_path / "minimq.zip")
    borrow_packages(make_environment(tmp_path / "dependent"))
    done = subprocess.run(
        [tmp_path / "dependent/bin/python", "-c", FROM_ZIP],
        env={**os.environ, "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = done.stdout.splitlines()
    assert len(files) == 4
    assert all(file.startswith(f"{archive}/") for file in files), files
