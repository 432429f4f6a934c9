"""Check the links of all documents, as a code host resolves them: `python scripts/check_links.py`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("*.md", "docs/*.md", "docs/*/*.md", "tests/*.md", "bench/*.md")
#: Code whose docstrings and messages refer to pages.
CODE = ("examples/*.py", "bench/*.py", "scripts/*.py", "*/minimq*/**/*.py", "*/*_minimq/**/*.py")
_slug = slugify(case="lower")
_markdown = MarkdownIt("commonmark").enable("table")


def broken_links(document: Path) -> Iterator[str]:
    """Yield a sentence about each broken link of a document."""
    for link in links(document):
        if reason := fault(document, link):
            yield f"{document.relative_to(ROOT)}: {link}: {reason}"


def fault(document: Path, link: str) -> str | None:
    """Return why a link is broken, or None. Fetches nothing: only the form of external addresses is checked."""
    address = urlsplit(link)
    if address.scheme:
        well_formed = address.scheme == "https" and re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", address.netloc)
        return None if well_formed else "an address elsewhere is https://HOST/..."
    if address.netloc or address.path.startswith("/"):
        return "links between files are relative"
    target = (document.parent / address.path).resolve() if address.path else document
    if not target.is_relative_to(ROOT) or not target.exists():
        return "there is no such file"
    if address.fragment and address.fragment not in anchors(target):
        return f"{target.name} has no such heading"
    return None


def links(document: Path) -> Iterator[str]:
    for token in _markdown.parse(_text(document)):
        for child in token.children or ():
            if target := child.attrGet("href") or child.attrGet("src"):
                yield str(target)


@cache
def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings of a document; repeated headings are numbered."""
    seen = Counter[str]()
    names = set()
    tokens = _markdown.parse(_text(document))
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            words = "".join(child.content for child in content.children or ())
            name = _slug(words, "-")
            names.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return names


def _text(document: Path) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", document.read_text(), flags=re.DOTALL)


def missing_pages() -> Iterator[str]:
    """Yield a sentence about each missing page that code refers to."""
    for path in sorted(set(chain.from_iterable(ROOT.glob(pattern) for pattern in CODE))):
        for page, anchor in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", path.read_text()):
            if reason := fault(ROOT / "README.md", f"{page}#{anchor}"):
                yield f"{path.relative_to(ROOT)}: {page}#{anchor}: {reason}"


def all_faults() -> list[str]:
    documents = sorted(set(chain.from_iterable(ROOT.glob(pattern) for pattern in DOCUMENTS)))
    return [*chain.from_iterable(broken_links(document) for document in documents), *missing_pages()]


if __name__ == "__main__":
    sys.exit("\n".join(all_faults()) or 0)
