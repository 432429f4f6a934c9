"""The pages of the documentation: their blocks of code, and their programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def blocks_of(document: str, language: str) -> list[str]:
    """Return the blocks of code of a page in a language, as they are printed."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(document), re.DOTALL)


def run_page(document: str, folder: Path, **variables: str) -> list[str]:
    """Run the Python blocks of a page as one program, in an environment; return the lines that it prints."""
    program = folder / "page.py"
    program.write_text("\n".join(blocks_of(document, "python")))
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(program)],  # a name that is to go
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
