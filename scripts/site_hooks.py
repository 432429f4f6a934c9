"""MkDocs hooks: add pages from outside docs/, and adapt links that work on a code host to the site."""

from __future__ import annotations

import ast
import inspect
import posixpath
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

from minimq import Admin
from minimq.admin.operation import operations_of
from minimq_broker import __main__ as broker
from minimq_cli import main as client
from minimq_nameserver import __main__ as nameserver

ROOT = Path(__file__).parent.parent
COMMANDS = {"minimq": client.main, "minimq-broker": broker.main, "minimq-nameserver": nameserver.main}
#: Columns of help texts, so that they fit beside the navigation.
_HELP_WIDTH = 86
#: Pages of the site whose files are outside docs/, by the path in links to them.
ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",  # docs/security.md is about clusters
    "bench/README.md": "bench.md",
    "tests/README.md": "tests.md",
}
slug = partial(slugify(case="lower"), sep="-")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and a page for each example and each command."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for example in sorted(ROOT.glob("examples/*.py")):
        page = f"examples/{example.stem}.md"
        files.append(File.generated(config, page, content=example_page(example), inclusion=InclusionLevel.NOT_IN_NAV))
    for name, command in COMMANDS.items():
        files.append(File.generated(config, f"reference/{name}.md", content=command_page(name, command)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Convert links between files of the repository to links between pages of the site."""
    return adapt_links(with_parts(markdown), page.file.src_uri, config.repo_url)


def on_page_content(html: str, **_: object) -> str:
    """Add the name of its column to each cell of a table; the style shows it on a phone."""
    return re.sub(r"<table>.*?</table>", labelled, html, flags=re.DOTALL)


def labelled(table: re.Match[str]) -> str:
    """Return a table whose cells have their column's heading as `data-label`."""
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)
    names = [re.sub(r"<[^>]*>", "", head).strip().replace('"', "&quot;") for head in heads]
    count = 0

    def label(_: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f'<td data-label="{names[(count - 1) % len(names)]}"'

    return re.sub(r"<td\b", label, table[0]) if names else table[0]


def with_parts(markdown: str) -> str:
    """Replace each mark `<!-- README.md#ANCHOR -->` in the text of a page by that section.

    If a language follows the anchor, only the first code block in that language is used. `<!-- commands -->` becomes
    the table of all commands of minimq, and `<!-- methods -->` the table of all methods of `Admin`.
    """
    for mark, rows in {"<!-- commands -->": command_rows, "<!-- methods -->": method_rows}.items():
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(rows()))
    return re.sub(r"^<!-- README\.md#(\S+)(?: (\w+))? -->$", _part, markdown, flags=re.MULTILINE)


def _part(mark: re.Match[str]) -> str:
    readme = (ROOT / "README.md").read_text()
    sections = {
        slug(title): text for title, text in re.findall(r"^#+ (.*)\n\n((?:(?!^#+ ).*\n)*)", readme, re.MULTILINE)
    }
    text = re.sub(r"\]\((?![#\w+]+:|#)", "](../", sections[mark[1]])
    block = re.search(rf"^```{mark[2]}\n.*?^```$", text, re.MULTILINE | re.DOTALL) if mark[2] else None
    return block[0] if block else text


def command_rows() -> Iterator[str]:
    """Yield the lines of the table of all commands of minimq."""
    asking = {each.name for each in operations_of(Admin) if each.asks}
    yield from ("| command | what it does | may ask |", "|---|---|---|")
    for path, command in commands_below(client.main, ()):
        name = " ".join(path)
        yield f"| `{name}` | {command.get_short_help_str(200)} | {'yes' if name in asking else ''} |"


def commands_below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands that are not groups, with their paths."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if found := command.get_command(context, name):
            yield from commands_below(found, (*path, name))


def method_rows() -> Iterator[str]:
    """Yield the lines of the table of all methods of `Admin`."""
    yield from ("| method | command | what it does |", "|---|---|---|")
    for name in dir(Admin):
        if not name.startswith("_"):
            said = " ".join((inspect.getdoc(getattr(Admin, name)) or "").partition("\n\n")[0].split())
            commands = [f"`{each.name}`" for each in operations_of(Admin) if each.function.__name__ == name]
            yield f"| `{name}` | {', '.join(commands)} | {said} |"


def command_page(name: str, command: click.Command) -> str:
    """Return the page of a command: the help texts of the command and all its subcommands, as in a terminal."""
    sections = (f"## {path}\n\n```text\n{text}\n```\n" for path, text in helps(command, name, None))
    return f"# The command {name}\n\n" + "\n".join(sections)


def helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """Yield the paths and help texts of a command and its subcommands."""
    # Existing MkDocs extensions for this do not know how the newest click marks a missing default.
    with click.Context(command, parent, name, terminal_width=_HELP_WIDTH, max_content_width=_HELP_WIDTH) as context:
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                if found := command.get_command(context, below):
                    yield from helps(found, below, context)


def example_page(example: Path) -> str:
    """Return the page of an example: its summary and its code."""
    code = example.read_text()
    summary = (ast.get_docstring(ast.parse(code)) or "").partition("\n\n")[0]
    return f"# {example.name}\n\n{summary}\n\n```python\n{code}```\n"


def adapt_links(markdown: str, page: str, repository: str | None) -> str:
    """Return the text of a page with links that work in the site, or at the code host for files without a page."""
    source = {page: source for source, page in ELSEWHERE.items()}.get(page, f"docs/{page}")

    def adapted(link: re.Match[str]) -> str:
        words, target = link.groups()
        path, hash_mark, anchor = target.partition("#")
        if not path or ":" in path:
            return link[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if there := page_of(file):
            return f"[{words}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{hash_mark}{anchor})"
        if (ROOT / file).exists():
            return f"[{words}]({repository}/{file})" if repository else words
        return link[0]  # broken; the build reports it

    return "".join(
        part if number % 2 else _LINK.sub(adapted, part) for number, part in enumerate(_CODE.split(markdown))
    )


def page_of(file: str) -> str | None:
    """Return the page of the site that shows a file of the repository."""
    if file == "README.md":
        return "index.md"
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file.startswith("examples/") and file.endswith(".py"):
        return file.removesuffix(".py") + ".md"
    return ELSEWHERE.get(file)
