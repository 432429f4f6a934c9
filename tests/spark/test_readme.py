"""The few lines of Spark in the README, as a newcomer runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minimq import LocalCluster, Message, Producer

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_lines_run_in_a_python_that_is_not_the_one_on_the_path(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with Producer(cluster.nameserver) as producer:
        producer.send(Message(topic, b"espresso"))
    [lines] = [block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "spark" in block]
    program = tmp_path / "orders.py"
    program.write_text(lines.replace("127.0.0.1:9876", cluster.nameserver).replace('"orders"', repr(topic)))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
    environment["PATH"] = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != Path(sys.executable).parent
    )
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "espresso" in done.stdout
