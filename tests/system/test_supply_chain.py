"""The parts of a release: pinned by hashes, listed in a bill of materials, and built twice with the same bytes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import minimq
from support.cases import for_each
from support.container_files import DOCKERFILE
from support.packaging import ROOT, build_sdist, build_wheel

FILES = ("requirements.txt", "requirements-spark.txt", "requirements-build.txt")
#: An even number of seconds, as times in a zip file are.
EPOCH = 1_760_000_000
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SBOM: dict[str, Any] = json.loads((ROOT / "docker" / "sbom.cdx.json").read_text())


def pinned(text: str) -> dict[str, str]:
    """Return versions by name."""
    return {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)
    }


CONSTRAINTS = pinned((ROOT / "constraints.txt").read_text())


def locked(file: str) -> dict[str, str]:
    return pinned((ROOT / "docker" / file).read_text())


def needed(*extras: str) -> set[str]:
    """Return all packages that minimq asks for with some extras, by what is installed here of them."""
    own = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    waiting = [Requirement(line) for line in own]
    found: set[str] = set()
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name not in found:
            found.add(name)
            asked = map(Requirement, metadata.requires(name) or [])
            waiting += [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


@for_each("file", FILES)
def test_every_package_of_an_image_has_hashes_and_the_tested_version(file: str) -> None:
    text = (ROOT / "docker" / file).read_text()
    entries = re.findall(r"^[^\s#].*(?:\n +--hash.*)*", text, re.MULTILINE)
    assert len(entries) == len(locked(file)) > 0
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==\S+(?: ; [^\\]+)?(?: \\\n +--hash=sha256:[0-9a-f]{64})+", entry), entry
    assert locked(file).items() <= CONSTRAINTS.items()


@pytest.mark.parametrize(
    ("file", "extras"), [("requirements.txt", ("etcd", "secure", "console")), ("requirements-spark.txt", ("spark",))]
)
def test_an_image_has_what_minimq_asks_for_and_nothing_else(file: str, extras: tuple[str, ...]) -> None:
    assert set(locked(file)) == needed(*extras)
    assert f"minimq[{','.join(extras)}]" in (ROOT / "docker" / file).read_text().splitlines()[0]


def test_images_install_nothing_without_a_hash() -> None:
    lines = re.sub(r"\\\n", " ", DOCKERFILE)
    calls = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&\n]*", lines)
    assert len(calls) == 6
    # The one that installs is not of the images: what `venv` brings there by itself has no hash, and is in no list.
    made = [line.strip() for line in re.findall(r"-m venv [^&\n]*", lines)]
    assert sorted(made) == ["-m venv --without-pip /opt/minimq"] * 2 + ["-m venv /tools"]
    for call in calls:
        of_a_file = re.search(r"-r (?:\S*/)?(requirements[\w-]*\.txt)", call)
        if of_a_file:
            assert "--require-hashes" in call
            assert of_a_file[1] in FILES
        else:
            assert "--no-index --no-deps" in call  # of wheels that were made here
        assert "--require-hashes" in call or "--no-index" in call


def test_the_bill_of_materials_lists_what_the_image_has() -> None:
    assert (SBOM["bomFormat"], SBOM["specVersion"]) == ("CycloneDX", "1.6")
    subject = SBOM["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("minimq", minimq.__version__)
    listed = {canonicalize_name(each["name"]): each["version"] for each in SBOM["components"]}
    assert listed == locked("requirements.txt")
    for each in SBOM["components"]:
        assert each["purl"] == f"pkg:pypi/{canonicalize_name(each['name'])}@{each['version']}"
    known = {subject["bom-ref"], *(each["bom-ref"] for each in SBOM["components"])}
    edges = {each["ref"]: set(each.get("dependsOn", ())) for each in SBOM["dependencies"]}
    assert known == edges.keys()
    assert set().union(*edges.values()) | {subject["bom-ref"]} == known  # nothing is there that nobody needs
    assert "COPY docker/healthcheck.py docker/sbom.cdx.json /opt/minimq/" in DOCKERFILE


@pytest.mark.slow
def test_the_wheel_is_the_same_wherever_and_whenever_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wheel is built here, the other one of an unpacked sdist with other times and modes of files."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    with tarfile.open(build_sdist(tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "far" / "away", filter="data")
    [source] = (tmp_path / "far" / "away").iterdir()
    for path in source.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1e9, 1e9))
    first = build_wheel(tmp_path / "one")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    second = build_wheel(tmp_path / "two", source)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {each.date_time for each in archive.infolist()} == {time.gmtime(EPOCH)[:6]}


def test_scripts_that_lock_are_valid() -> None:
    for name in ("audit.sh", "lock.sh", "make-sbom.sh", "check-dist.sh", "ensure-promtool.sh"):
        subprocess.run(["bash", "-n", str(ROOT / "scripts" / name)], check=True)
