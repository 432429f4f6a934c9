"""The pages about the client run as they are printed, and name what the code has."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from minimq import Admin, LocalCluster
from minimq.local.broker_process import BrokerProcess
from support.pages import run_page, text_of
from support.registry_server import registry_server

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_page_about_schemas_is_one_program_that_runs(tmp_path: Path) -> None:
    with registry_server() as registry:
        said = run_page("docs/schemas.md", tmp_path, REGISTRY_URL=registry.url)
    assert said == [
        "read Order(id='o-17', cents=480)",
        "refused the value does not fit its schema: `$.lines[1].cents` is a str, not int",
        "order o-17",
        "order o-20",
        "rejected",
        "marked b'\\x00' {'id': 'o-17'}",
        "stored orders/broker-a/0",
        "value Order(id='o-23', cents=480)",
    ]


def test_the_page_about_asyncio_is_one_program_that_runs(tmp_path: Path) -> None:
    said = run_page("docs/asyncio.md", tmp_path)
    assert said[0].startswith("stored ")
    assert said[1:] == ["sent 900 SEND_OK", "polled 1000", "worked 1000", "pushed 1000"]


def test_the_page_about_faststream_is_one_program_that_runs(tmp_path: Path) -> None:
    assert run_page("docs/faststream.md", tmp_path) == [
        "stored orders billed 6",
        "billed 30",
        "price 6 EUR",
        "topics ['bills', 'orders', 'prices']",
    ]


def test_the_page_about_work_queues_is_one_program_that_runs(tmp_path: Path) -> None:
    assert run_page("docs/work-queues.md", tmp_path) == [
        "mailed 100",
        "delivered 100",
        "thumbnails 20 20",
        "refused: True",
        "unsettled 0",
        "in order True 20",
        "tasks 20",
    ]


def test_the_page_about_arrow_is_one_program_that_runs(tmp_path: Path) -> None:
    assert run_page("docs/arrow.md", tmp_path) == [
        "stored 3",
        "refused 1",
        "o-17 base64:ABE= b'\\x00\\x11'",
        "[('at', b'1'), ('at', b'\\xff')]",
        "[(None, 2), ('coffee', 2)]",
        "[None, None, None, None]",
        "{'espresso': 2, 'mocha': 1, 'tea': 1}",
        "[('coffee', 2), (None, 2)]",
        "polled 4",
    ]


def test_the_page_about_transactions_is_one_program_that_runs(tmp_path: Path) -> None:
    assert run_page("docs/transactions.md", tmp_path) == [
        "stored 2",
        "total 17",
        "mailed 1",
        "sent 3 left 0",
        "ordered [('espresso',)]",
    ]


def test_the_page_about_delayed_messages_is_one_program_that_runs(tmp_path: Path) -> None:
    assert run_page("docs/delayed-messages.md", tmp_path) == [
        "waits True -1",
        "b'tea is ready' True True",
        "recalled True already recalled",
        "waiting 1 True None",
        "totals [('reminders', 1)]",
    ]


def test_the_page_about_connections_is_one_program_that_runs(tmp_path: Path) -> None:
    assert run_page("docs/connections.md", tmp_path) == ["read b'espresso'", "loops 1", "stored 1"]


def test_the_page_about_local_clusters_is_one_program_that_runs(tmp_path: Path) -> None:
    said = run_page("docs/local-cluster.md", tmp_path)
    assert said[0].endswith(" ['broker-a', 'broker-b'] ['nameserver-1']")
    assert said[1:] == ["broker-a", "read [b'before', b'after']"]


def test_the_page_about_administration_is_one_program_that_runs(tmp_path: Path) -> None:
    said = run_page("docs/administration.md", tmp_path)
    assert said[:-1] == [
        "stored 1000 in 12",
        "route 12 ['orders']",
        "groups ['billing'] unread 0",
        "committed True",
        "unread again 1000",
        "error GROUP_NOT_FOUND",
        "writable {'broker-a'}",
        "brokers ['broker-a', 'broker-b'] []",
        "away []",
        "answered True",
        "not changed on ['broker-b']",
    ]
    assert said[-1].startswith("refused topic orders was not deleted: broker-b is away since ")


def names_in_tables(document: str) -> set[str]:
    """Return the names in the first column of the tables of a page."""
    columns = re.findall(r"^\| ([^|]*`[^|]*) \|", text_of(document), re.MULTILINE)
    return {name for column in columns for name in re.findall(r"`(\w+)", column)}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_method_of_admin_is_on_its_page() -> None:
    assert names_in_tables("docs/administration.md") == public(Admin)


def test_every_control_of_a_local_cluster_is_there() -> None:
    known = public(BrokerProcess) | {"name", "address", "data_dir", "log_path", "broker_name", "broker_id"}
    arguments = LocalCluster.__init__.__annotations__.keys() - {"return", "unknown"}
    controls = names_in_tables("docs/local-cluster.md")
    assert controls <= known | arguments
    assert controls >= {"start", "stop", "kill", "pause", "resume", "restart", "running", "paused", "pid"}
    assert controls >= arguments - {"cluster"}


# ---- installing, and what runs then ---------------------------------------------------------------


def test_the_extras_that_documents_name_exist() -> None:
    named = 0
    for document in ("README.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))):
        for extras in re.findall(r"(?:minimq|'\.|\whl)\[([a-z,]+)\]", text_of(document)):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), document
            named += 1
    assert named >= 2


def test_each_example_says_what_it_needs() -> None:
    """A script needs what its modules import; it names the packages or extras that bring more than minimq does."""
    modules = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
    homes = packages_distributions()
    said = 0
    for script in modules.values():
        if "__main__" not in script.read_text():
            continue
        install = " ".join(
            re.findall(r"pip install ([^#&\n]*)", ast.get_docstring(ast.parse(script.read_text())) or "")
        )
        extras = re.findall(r"\[([a-z,]+)\]", install)
        known = brought_by(*",".join(extras).split(",")) if extras else brought_by()
        known |= {"minimq", "faststream_minimq", *re.findall(r"(?<![\w\[,])[a-z][a-z-]*(?![\w\]])", install)}
        for module in needed(script.stem, modules) - sys.stdlib_module_names:
            assert known & {name.lower() for name in homes.get(module, [module])}, f"{script.name} imports {module}"
        said += 1
    assert said >= 7


def brought_by(*extras: str) -> set[str]:
    """Return the names of what is installed with some extras."""
    requirements = [*PROJECT["dependencies"]]
    for extra in extras:
        requirements += PROJECT["optional-dependencies"][extra]
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


def needed(module: str, modules: dict[str, Path]) -> set[str]:
    """Return what a module and those beside it that it imports need from elsewhere."""
    names, waiting = set[str](), {module}
    done = set[str]()
    while waiting:
        done.add(here := waiting.pop())
        found = imported(modules[here])
        names |= found - modules.keys()
        waiting |= found & modules.keys() - done
    return names


def imported(script: Path) -> set[str]:
    tree = ast.parse(script.read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}
