"""Programs that gevent or eventlet has patched are told at once that clients do not work there."""

from __future__ import annotations

import subprocess
import sys

import pytest

PATCHES = {
    "gevent.monkey": "from gevent import monkey; monkey.patch_all()",
    "gevent.monkey without threads": "from gevent import monkey; monkey.patch_all(thread=False)",
    "eventlet.patcher of threads alone": "import eventlet; eventlet.monkey_patch(all=False, thread=True)",
}
CLIENTS = """
import minimq, minimq.aio
from minimq.errors import UsageError
for make in (
    minimq.Admin, minimq.Producer, minimq.Cluster, minimq.aio.Producer,
    lambda _: minimq.PullConsumer(_, group="g"), lambda _: minimq.PushConsumer(_, group="g"),
    lambda _: minimq.WorkQueueConsumer(_, group="g"), lambda _: minimq.aio.PullConsumer(_, group="g"),
):
    try:
        make("127.0.0.1:1")
    except UsageError as error:
        print(error.message)
"""


@pytest.mark.parametrize("patch", PATCHES)
def test_no_client_is_made_under_a_monkey_patch(patch: str) -> None:
    program = f"import warnings; warnings.simplefilter('ignore')\n{PATCHES[patch]}\n{CLIENTS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout.splitlines()
    assert len(said) == 8, done.stderr
    assert all(f"{patch.split(maxsplit=1)[0]} has replaced modules" in line for line in said), said


def test_clients_are_made_where_the_packages_are_only_imported() -> None:
    program = f"import warnings; warnings.simplefilter('ignore')\nimport gevent.monkey, eventlet\n{CLIENTS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
