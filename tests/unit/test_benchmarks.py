"""The scripts of bench/ find all that they import, as `make` starts them: without the folders of the tests."""

import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_every_script_can_be_imported() -> None:
    scripts = sorted(script.stem for script in BENCH.glob("*.py"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    imports = "; ".join(f"import {script}" for script in scripts)
    command = [sys.executable, "-c", imports]
    done = subprocess.run(command, check=False, cwd=BENCH, env=environment, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert "routes" in scripts
