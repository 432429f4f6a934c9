"""The files that a browser loads: those of others are unchanged, and all are in the wheel's package."""

from __future__ import annotations

import hashlib
from pathlib import Path

import minimq_console
from support.console_client import ConsoleClient

STATIC = Path(minimq_console.__file__).parent / "static"


def test_the_file_of_another_project_is_the_one_that_was_taken() -> None:
    about = dict(line.split(": ", 1) for line in (STATIC / "htmx.txt").read_text().splitlines())
    assert hashlib.sha256((STATIC / about["file"]).read_bytes()).hexdigest() == about["sha256"]
    assert f'version:"{about["version"]}"' in (STATIC / about["file"]).read_text()
    assert "0BSD" in about["licence"]
    assert "Permission to use" in (STATIC / "htmx.LICENSE.txt").read_text()


def test_browsers_get_scripts_and_styles_as_such(console: ConsoleClient) -> None:
    for name, kind in (("htmx.min.js", "javascript"), ("live.js", "javascript"), ("console.css", "css")):
        answer = console.get(f"/static/{name}")
        assert answer.status == 200
        assert kind in answer.headers["Content-Type"]
    assert console.get("/static/../app.py").status == 404
