"""The program of the page about replication runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "replication.md"


def test_the_page_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "replication.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "SendStatus.SEND_OK"
    roles = {line.split()[1] for line in said[1:]}
    assert "master" in roles
