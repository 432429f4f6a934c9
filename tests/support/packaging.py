"""The package as users install it: sdist, wheel, and Python environments that have it, or only what it needs."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def build_sdist(folder: Path) -> Path:
    """Build the sdist with the tool that is installed, so that no network is needed."""
    return _build("sdist", ROOT, folder, "minimq-*.tar.gz")


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of a source tree, as `build_sdist` does."""
    return _build("wheel", source, folder, "minimq-*.whl")


def _build(target: str, source: Path, folder: Path, pattern: str) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    [built] = folder.glob(pattern)
    return built


def make_environment(folder: Path) -> Path:
    """Make a virtual environment without any package; return the folder of its packages."""
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    return packages


def borrow_packages(packages: Path) -> None:
    """Let an environment have what is installed here, behind its own packages; a checkout is not installed there."""
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))


def install(wheel: Path, packages: Path, *others: str) -> None:
    """Copy the wheel, other packages and the dependencies of all to the folder of an environment's packages."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    for name in _needed(["minimq", *others]) - {"minimq"}:
        for file in metadata.files(name) or []:
            if ".." not in file.parts and not {"tests", "include"} & set(file.parts):
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), target)


def pack(folder: Path, archive: Path) -> Path:
    """Write a folder's content into an archive, as `tar -czf ARCHIVE -C FOLDER .` does."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as writing:
        writing.add(folder, ".")
    return archive


def _needed(names: list[str]) -> set[str]:
    """Return distributions with all that they depend on."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            requirements = map(Requirement, metadata.requires(name) or [])
            names += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found
