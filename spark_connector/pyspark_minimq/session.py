"""Creates a Spark session that finds minimq."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_minimq.errors import MinimqSparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VARIABLE = "PYSPARK_PYTHON"


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Return a session that searches the Python that runs this program for formats such as minimq.

    Spark searches the Python that PYSPARK_PYTHON named when its Java process was started, or else the `python3` on
    PATH. In a notebook, or in a virtual environment that is not activated, that is another Python. So this function
    sets the variable unless it is set, and must be called before any session exists.

    Args:
        builder: configuration of the session.

    Raises:
        MinimqSparkError: Java was started before, and searches another Python.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault(_VARIABLE, sys.executable)
    found = (SparkSession.builder if builder is None else builder).getOrCreate()
    is_here = type(found).__module__ == "pyspark.sql.session"
    java = getattr(getattr(found, "sparkContext", None), "_jvm", None) if is_here else None
    if java is not None:
        named = java.System.getenv(_VARIABLE)
        python = named or shutil.which("python3") or "python3"
        if not named and Path(python).parent != Path(sys.executable).parent and not _has_minimq(python):
            raise MinimqSparkError(
                f"Spark looks for formats in {python}, as its Java was started without {_VARIABLE}: start this program "
                f"with {_VARIABLE}={sys.executable}; in a notebook restart the kernel and call session() first"
            )
    return found


def _has_minimq(python: str) -> bool:
    return subprocess.run([python, "-c", "import pyspark_minimq"], capture_output=True, check=False).returncode == 0
