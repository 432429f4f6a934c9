"""The helper that starts the image in users' tests, in a real Docker.

`make compose-test` makes the image and runs this; elsewhere it runs where Docker has the image.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minimq import Admin, Credentials, Message, Producer
from minimq.errors import DeadlineExceeded, NotAuthenticated, Unavailable
from support.command import environment

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.system

IMAGE = "minimq"
PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Docker on this machine that has the image; a test leaves no container there."""
    pytest.importorskip("testcontainers", reason="testcontainers is not installed: make setup")
    # By its command: the library leaves a socket open where nobody listens.
    if shutil.which("docker") is None:
        pytest.skip("there is no Docker")
    asked = subprocess.run(
        ["docker", "image", "inspect", IMAGE], capture_output=True, text=True, check=False, timeout=60
    )
    if asked.returncode:
        pytest.skip(
            f"Docker does not run, or has no image minimq, which `make compose-test` makes: {asked.stderr.strip()}"
        )
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")  # all tests here stop what they start
    # This machine may be a container itself, with a Docker of its own.
    monkeypatch.setenv("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
    from testcontainers.core.config import ConnectionMode, testcontainers_config  # an extra

    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    before = started()
    yield
    assert started() == before


def started() -> set[str]:
    listed = ["docker", "ps", "--all", "--quiet", "--filter", "label=org.testcontainers"]
    return set(subprocess.run(listed, capture_output=True, text=True, check=True, timeout=60).stdout.split())


@pytest.mark.usefixtures("docker")
def test_the_fixtures_work_with_a_container_as_the_page_says(pytester: pytest.Pytester) -> None:
    program, *_, conftest = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    pytester.makeconftest(conftest)
    pytester.makepyfile(test_page=program)
    options = ("-p", "no:minimq", "-p", "minimq.testing.plugin", "-p", "no:cacheprovider")
    result = pytester.runpytest_subprocess(*options, "-k", "received")
    result.assert_outcomes(passed=1, deselected=1)


@pytest.mark.usefixtures("docker")
def test_a_secured_container_lets_in_who_has_its_credentials_at_the_loopback_address() -> None:
    from minimq.testing import MinimqContainer  # needs an extra

    with MinimqContainer(secure=True) as secured, MinimqContainer() as plain:
        assert secured.nameserver != plain.nameserver
        assert plain.credentials is None
        for container in (secured, plain):
            ports = container.get_wrapped_container().ports
            assert {each["HostIp"] for published in ports.values() for each in published} == {"127.0.0.1"}
            with Admin(container.nameserver, credentials=container.credentials) as admin:
                admin.create_topic("orders")
            with Producer(container.nameserver, credentials=container.credentials) as producer:
                assert producer.send(Message("orders", b"espresso")).queue.broker_name == "broker-a"
        assert secured.credentials is not None
        keyless = Credentials.from_text(re.sub(r"(?m)^key = .*$", "", secured.credentials.text))
        with Admin(secured.nameserver, credentials=keyless) as admin, pytest.raises(NotAuthenticated):
            admin.list_topics()
    plain.stop()  # again


@pytest.mark.usefixtures("docker")
def test_what_does_not_serve_is_told_with_its_log_and_removed() -> None:
    from minimq.testing import MinimqContainer  # needs an extra

    with pytest.raises(Unavailable, match=r"has ended; the end of its log:(.|\n)*'never' is not one of"):
        MinimqContainer().with_env("MINIMQ_BROKER_ROLE", "never").start()
    nowhere = MinimqContainer(timeout_s=20).with_env("MINIMQ_BROKER_NAMESERVER", "127.0.0.1:9")
    with pytest.raises(DeadlineExceeded, match=r"no broker is registered; the end of its log:(.|\n)*nothing listens"):
        nowhere.start()
    with pytest.raises(Unavailable, match="docker build -t minimq"):
        MinimqContainer("minimq-of-nobody").start()


def test_without_the_library_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['testcontainers'] = None; from minimq.testing import MinimqContainer"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, env=environment()
    )
    assert done.returncode == 1
    assert "pip install 'minimq[testcontainers]'" in done.stderr


def test_without_docker_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("testcontainers", reason="testcontainers is not installed: make setup")
    from minimq.testing import MinimqContainer  # needs an extra

    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"Docker does not answer: .*; start it, or say in DOCKER_HOST where it is"):
        MinimqContainer()
