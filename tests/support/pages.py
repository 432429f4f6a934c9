"""The pages of the documentation: their blocks of code, and their programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.server_copies import CommandCopy

ROOT = Path(__file__).parents[2]


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def blocks_of(document: str, language: str) -> list[str]:
    """Return the blocks of code of a page in a language, as they are printed."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(document), re.DOTALL)


def run_page(document: str, folder: Path, **variables: str) -> list[str]:
    """Run the Python blocks of a page as one program, in an environment; return the lines that it prints."""
    program = folder / "page.py"
    is_old = 'import warnings; warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")'
    program.write_text("\n".join([is_old, *blocks_of(document, "python")]))
    with CommandCopy(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | variables
    ) as running:
        try:
            output, errors = running.communicate(timeout=110)
        finally:
            running.kill()
    assert running.returncode == 0, errors.decode()
    return output.decode().splitlines()
