"""Every block of code in the documents is run by a test or checked here; a new one that is neither fails this."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

from minimq import LocalCluster, PullConsumer
from minimq_common.security.access_document import from_toml
from pyspark_minimq.options import OPTIONS
from pyspark_minimq.write_options import WRITE_OPTIONS
from support.cases import for_each
from support.pages import ROOT, blocks_of, text_of

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "tests/*.md", "bench/*.md")
    for path in ROOT.glob(pattern)
)
#: Languages whose blocks are all checked below, whatever document they are in.
CHECKED = {"sh", "toml", "yaml", "json"}
#: Blocks that nobody runs: what a program prints, files, and diagrams.
NOT_CODE = {"text"}
#: Blocks of documents that are not run as one program by `run_page`: how many there are, and what runs or checks them.
OTHERWISE = {
    ("CONTRIBUTING.md", "python"): (3, "system/test_added_operation.py"),
    ("CONTRIBUTING.md", "diff"): (1, "system/test_added_feature.py"),
    ("README.md", "python"): (2, "system/test_wheel.py", "spark/test_finding.py"),
    ("docs/compacted-topics.md", "py"): (2, "spark/test_compacted_topic.py"),
    ("docs/console.md", "nginx"): (1, "console/test_behind_a_proxy.py"),
    ("docs/filtering.md", "python"): (1, "system/test_blocks.py"),
    ("docs/migrating-from-aiokafka.md", "py"): (6, "system/test_migration_pages.py"),
    ("docs/migrating-from-celery.md", "py"): (5, "system/test_migration_pages.py"),
    ("docs/migrating-from-confluent-kafka.md", "py"): (8, "system/test_migration_pages.py"),
    ("docs/migrating-from-rocketmq.md", "py"): (6, "system/test_migration_pages.py"),
    ("docs/processes.md", "python"): (4, "system/test_processes_page.py"),
    ("docs/proxies.md", "nginx"): (1, "integration/test_proxies.py"),
    # Parts of a program with a session, tables and queries of its own. Here: they are Python, and their options exist.
    ("docs/spark.md", "python"): (10, "system/test_blocks.py", "spark/test_page.py", "spark/test_stream_read.py"),
    ("docs/spark.md", "py"): (3, "spark/test_page.py", "spark/test_compacted_topic.py"),
    ("docs/spark.md", "sql"): (1, "spark/test_batch_read.py"),
    # The last is for containers, which need Docker; it is Python with names that exist.
    ("docs/testing.md", "python"): (2, "integration/test_testing_plugin.py"),
}
#: Programs of others that the documents call.
PROGRAMS = {
    *(
        "grpc_health_probe",
        "pip",
        "python",
        "python3",
        "source",
        "export",
        "wait",
        "sleep",
        "kill",
        "cd",
        "echo",
        "printf",
        "cat",
        "cp",
        "curl",
    ),
    *(
        "docker",
        "rsync",
        "kubectl",
        "grpcurl",
        "tar",
        "spark-submit",
        "opentelemetry-instrument",
        "pytest",
        "git",
        "environment/bin/pip",
        ".venv/bin/pytest",
        ".venv/bin/python",
    ),
}
COMMANDS = {"minimq", "minimq-broker", "minimq-nameserver"}  # test_documents.py compares their options with the code


def languages(document: str) -> Counter[str]:
    """Return how many blocks of each language a document has."""
    fences = re.findall(r"^ *(```+)(.*)$", text_of(document), re.MULTILINE)
    assert len(fences) % 2 == 0, f"{document}: a block does not end"
    return Counter(language.strip() for _, language in fences[::2])


def whole_programs() -> set[str]:
    """Return the documents whose Python blocks some test runs as one program."""
    calls = re.compile(r"run_page\(\s*\"(docs/[\w-]+\.md)\"")
    listed = re.findall(r"^    \"([\w-]+)\": \[", (ROOT / "tests/system/test_programs.py").read_text(), re.MULTILINE)
    called = {page for test in ROOT.glob("tests/**/test_*.py") for page in calls.findall(test.read_text())}
    return called | {f"docs/{page}.md" for page in listed}


def played_pages() -> set[str]:
    """Return the documents all of whose blocks a test plays one after the other."""
    every = re.compile(r"in re\.findall\(r\"```\(\\w\+\)\\n\(\.\*\?\)```\", text_of\(\"(docs/[\w-]+\.md)\"\)")
    return {page for test in ROOT.glob("tests/system/test_*.py") for page in every.findall(test.read_text())}


@for_each("document", DOCUMENTS)
def test_each_block_is_run_or_checked(document: str) -> None:
    if document in played_pages():
        return
    for language, count in languages(document).items():
        if language in CHECKED | NOT_CODE or (language == "python" and document in whole_programs()):
            continue
        known, *tests = OTHERWISE.get((document, language), (0,))
        assert count == known, (
            f"{document} has {count} blocks of {language or 'no language'}, and {known} of them are run: run them as a "
            f"program with run_page, or add them to OTHERWISE with the test that runs or checks them"
        )
        for test in tests:
            assert Path(document).name in (ROOT / "tests" / str(test)).read_text(), f"{test} does not read {document}"


def test_no_row_is_left_over() -> None:
    for (document, language), (count, *_) in OTHERWISE.items():
        assert languages(document)[language] == count, (document, language)


def commands_of(block: str) -> Iterator[list[str]]:
    """Yield the words of each command of a block of the shell, without variables that are set for it alone."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list[str]()
        for word in [*lexer, ";"]:
            if word in {"|", "&&", ";"}:
                if words:
                    yield words
                words = []
            elif words or not re.match(r"\w+=", word):
                words.append(word)


@for_each("document", [document for document in DOCUMENTS if blocks_of(document, "sh")])
def test_blocks_of_the_shell_are_well_formed_and_call_what_exists(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in blocks_of(document, "sh"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        for program, *arguments in commands_of(block):
            assert program in PROGRAMS | COMMANDS | {"make"}, (
                f"{document}: {program}: add it to PROGRAMS if it is right"
            )
            if program == "make":
                named = {word for word in arguments if re.fullmatch("[a-z-]+", word)}
                assert named <= targets, f"{document}: make {named - targets}"


def test_files_in_blocks_can_be_read() -> None:
    for document in DOCUMENTS:
        for block in blocks_of(document, "toml"):
            tomllib.loads(block)
        for block in blocks_of(document, "yaml"):
            assert list(yaml.safe_load_all(block)), document
        for block in blocks_of(document, "json"):
            json.loads(block)


def test_the_rules_of_the_page_about_security_are_rules() -> None:
    [rules] = blocks_of("docs/security.md", "toml")
    assert from_toml(rules.encode()).users["alice"].roles == ("readers",)


def test_the_page_about_filtering_subscribes(cluster: LocalCluster) -> None:
    [block] = blocks_of("docs/filtering.md", "python")
    with PullConsumer(cluster.nameserver, group="filtering") as consumer:
        exec(block, {"consumer": consumer})


def test_the_page_about_spark_names_options_that_exist() -> None:
    blocks = [*blocks_of("docs/spark.md", "python"), *blocks_of("docs/spark.md", "py")]
    for block in blocks:
        compile(block, "spark.md", "exec")
    named = set(re.findall(r"\.option\(\s*\"(\w+)\"", "\n".join(blocks)))
    assert len(named) > 5
    assert named - {"checkpointLocation"} <= {option.name for option in (*OPTIONS, *WRITE_OPTIONS)}
