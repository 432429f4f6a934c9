"""pyproject.toml names the source roots once for each tool: the lists must not drift apart."""

import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
BUILD = PYPROJECT["tool"]["hatch"]["build"]
PACKAGES = [Path(package) for package in BUILD["targets"]["wheel"]["packages"]]
ROOTS = list(dict.fromkeys(str(package.parent) for package in PACKAGES))


def test_every_tool_knows_every_source_root() -> None:
    tool = PYPROJECT["tool"]

    assert BUILD["dev-mode-dirs"] == ROOTS
    assert tool["pytest"]["ini_options"]["pythonpath"] == [*ROOTS, "tests"]
    assert tool["ruff"]["src"] == [*ROOTS, "tests"]
    assert tool["mypy"]["files"] == [*ROOTS, "tests", "bench", "examples", "scripts"]
    assert tool["mypy"]["mypy_path"] == [*ROOTS, "tests", "bench", "examples", "scripts"]
    contracts = tomllib.loads((REPOSITORY / "importlinter.toml").read_text())
    assert contracts["tool"]["importlinter"]["root_packages"] == [package.name for package in PACKAGES]


def test_a_source_root_is_not_a_package_itself() -> None:
    assert [root for root in ROOTS if (REPOSITORY / root / "__init__.py").exists()] == []
