"""A client whose source lacks a feature: its kernel, and the classes that assemble it, import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.deleted_features import CLIENT_FEATURES, copy_client_without

_PROGRAM = """
import pkgutil, sys
from importlib import import_module, util

import minimq

assert minimq.__file__.startswith(sys.argv[1])
assert util.find_spec("minimq.features." + sys.argv[2]) is None
for name in ("connection", "sending", "consuming", "rebalance"):
    for module in pkgutil.walk_packages(import_module(f"minimq.{name}").__path__, f"minimq.{name}."):
        import_module(module.name)
assert not [name for name in sys.modules if name.startswith("minimq.features.")]

from minimq import Admin, Message, Producer, PullConsumer, ReceivedMessage, aio
from minimq.filters import message_filter

assert issubclass(aio.PullConsumer, object)
Producer("127.0.0.1:1").close()
PullConsumer("127.0.0.1:1", group="g").close()
assert message_filter("a || b").text == "a || b"
"""


def test_every_feature_can_be_deleted() -> None:
    folder = Path(__file__).parents[3] / "client/minimq/features"
    assert {each.name for each in folder.iterdir() if (each / "__init__.py").exists()} == CLIENT_FEATURES.keys()


@pytest.mark.parametrize("name", CLIENT_FEATURES)
def test_a_client_works_without_the_feature(name: str, tmp_path: Path) -> None:
    copy_client_without(tmp_path, name)
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path), name]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
