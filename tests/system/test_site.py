"""The documents as a site: it is built without a warning, is complete, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
#: What users import; `minimq.testing` has the fixtures as well.
MODULES = (
    *("minimq", "minimq.aio", "minimq.errors", "minimq.arrow", "minimq.schemas", "minimq.testing", "minimq.otel"),
    *("pyspark_minimq", "faststream_minimq"),
)
#: Kinds of links by which a page loads something.
LOADED = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


class PageReader(HTMLParser):
    """The links of a page, what it loads, and the places in it to which others may link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links = list[str]()
        self.loaded = list[str]()
        self.places = set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag says."""
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "link" and LOADED & set(found.get("rel", "").split()):
            self.loaded.append(found["href"])
        self.loaded += [found[name] for name in ("src", "data", "poster") if name in found]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, PageReader]:
    return {page: PageReader(page.read_text()) for page in site.rglob("*.html")}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_link_between_pages_leads_somewhere(site: Path, pages: dict[Path, PageReader]) -> None:
    assert len(pages) > 80
    followed = 0
    for page, reader in pages.items():
        if page.name == "404.html":  # its links begin at the root of whatever host has the site
            continue
        for link in reader.links:
            address = urlsplit(link)
            if address.scheme:
                assert address.scheme == "https", f"{page.relative_to(site)}: {link}"
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page.relative_to(site)}: {link}"
            if address.fragment and target in pages and not address.fragment.startswith("__"):
                assert unquote(address.fragment) in pages[target].places, f"{page.relative_to(site)}: {link}"
            followed += 1
    assert followed > 5000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_page_loads_anything_from_elsewhere(site: Path, pages: dict[Path, PageReader]) -> None:
    for page, reader in pages.items():
        for address in reader.loaded:
            assert not urlsplit(address).netloc, f"{page.relative_to(site)} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def in_navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for part in entry.values() if isinstance(entry, dict) else [entry]:
            yield from in_navigation(part) if isinstance(part, list) else [part]


def test_every_page_is_in_the_navigation() -> None:
    class Plain(yaml.SafeLoader):
        """Reads the file without making the functions that it names."""

    Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Plain)
    assert [next(iter(entry)) for entry in settings["nav"]] == [
        *("Start", "Tutorial", "How-to guides", "Reference", "Explanation")
    ]
    shown = list(in_navigation(settings["nav"]))
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert written - set(shown) == set()
    assert len(set(shown)) == len(shown)


def test_every_public_name_is_documented() -> None:
    silent = []
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            members = inspect.getmembers(value) if inspect.isclass(value) else []
            methods = [(f"{name}.{own}", each) for own, each in members if not own.startswith("_")]
            for label, each in [(name, value), *methods]:
                code = each.fget if isinstance(each, property) else each
                is_ours = (getattr(code, "__module__", None) or "").startswith(("minimq", *MODULES))
                if is_ours and callable(code) and not inspect.getdoc(each):
                    silent.append(f"{module.__name__}.{label}")
    assert silent == []


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$|`(minimq\.[A-Z]+)`", pages, re.MULTILINE))
    names = {name for pair in shown for name in pair if name}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            found = {f"{module}.{name}", f"minimq.errors.{name}"} & names or f"{module}.{name}" in MODULES
            assert found, f"docs/reference has no {module}.{name}"


def test_links_of_all_documents_lead_somewhere() -> None:
    """README.md and others are read on a code host, so that the build of the site does not see their links."""
    script = [sys.executable, str(ROOT / "scripts" / "check_links.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
