"""The programs in the documents run as printed, and the lists in them agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

import minimq
from minimq import LocalCluster
from minimq.cli import main as client
from minimq_broker import __main__ as broker
from minimq_nameserver import __main__ as nameserver

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_page_about_sending_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "sending.py"
    program.write_text("\n".join(blocks("docs/sending.md", "python")))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert re.fullmatch(r"orders/broker-[ab]/[0-3] \d+ SendStatus.SEND_OK", said[0])
    assert "True True" in said
    assert re.search(r"done \d+", done.stdout), said  # another thread prints it, perhaps into a line of the program
    assert any(line.startswith("1 message for topic 'orders' was not acknowledged") for line in said)


def test_the_page_about_consuming_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "consuming.py"
    program.write_text("\n".join(blocks("docs/consuming.md", "python")))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    for line in ("pulled 1000", "pushed 1000", "tries [0, 1, 2, 3]", "in order [b'0', b'1', b'2', b'3', b'4']"):
        assert line in said
    assert any(line.startswith("dead b'bad' ('o-17',) eu orders") for line in said), said
    assert "dead letters orders - listener answered RETRY_LATER 1" in said
    assert "sent again 1 and then 0" in said
    assert "filtered b'bad'" in said


def test_the_page_about_compacted_topics_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "compacted.py"
    program.write_text("\n".join(blocks("docs/compacted-topics.md", "python")))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[{'keys': ['N14228'], 'body': b'at LAX'}]", "{'N14228': b'at LAX'}"]


def test_the_page_about_tracing_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "tracing.py"
    program.write_text("\n".join(blocks("docs/tracing.md", "python")))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "in a span: True",
        "send orders PRODUCER",
        "checkout INTERNAL",
        "process orders CONSUMER",
        "receive orders CLIENT",
        "ack orders CLIENT",
        "process orders CONSUMER",
        "traces: 2",
    ]


def test_the_commands_of_the_readme_run_as_printed(tmp_path: Path) -> None:
    with LocalCluster(brokers=2) as cluster:
        printed = run_commands(blocks("README.md", "sh")[1], cluster, tmp_path)
    consumed = next(text for command, text in printed.items() if command.startswith("minimq consume"))
    assert sorted(consumed.splitlines()) == ["one", "three", "two"]


def test_the_commands_about_topics_run_as_printed(tmp_path: Path) -> None:
    with LocalCluster(brokers=2) as cluster:
        run_commands(blocks("docs/sending.md", "sh")[0], cluster, tmp_path)


def test_the_commands_about_the_command_run_as_printed(tmp_path: Path) -> None:
    with LocalCluster(brokers=1) as cluster:
        printed = run_commands(blocks("docs/command.md", "sh")[0], cluster, tmp_path)
    assert printed["minimq topic delete copied --yes"] == "topic copied deleted\n"


def run_commands(text: str, cluster: LocalCluster, directory: Path) -> dict[str, str]:
    """Run the lines of a block one after the other against a cluster; return what each wrote."""
    printed = {}
    for line in text.splitlines():
        shown = line.partition("#")[0].strip()
        if shown.startswith(("source ", "minimq local")):
            continue  # the cluster runs already, at another port
        command = shown.replace("minimq ", f"{sys.executable} -m minimq -n {cluster.nameserver} ")
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=directory
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed[shown] = done.stdout
    return printed


def test_the_list_of_options_is_current() -> None:
    script = ROOT / "scripts" / "document_options.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_public_face_is_small_and_documented() -> None:
    assert len(minimq.__all__) <= 40
    for name in minimq.__all__:
        assert getattr(minimq, name).__doc__, name


COMMANDS = {"minimq": client.main, "minimq-broker": broker.main, "minimq-nameserver": nameserver.main}


def test_the_commands_that_documents_name_are_there() -> None:
    named = 0
    for document in ("README.md", "ARCHITECTURE.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))):
        text = (ROOT / document).read_text()
        lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in whole_lines(block)]
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for line in (*lines, *(code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose))):
            for found in re.finditer(r"(?:^|\| )(minimq(?:-broker|-nameserver)?) ([a-z-][^#|>]*)", line):
                check_command(COMMANDS[found[1]], found[2].split(), f"{document}: {found[0]}")
                named += 1
    assert named > 50


def whole_lines(block: str) -> list[str]:
    """Return the lines of a block of the shell; one that goes on in the next is one."""
    return block.replace("\\\n", " ").splitlines()


def check_command(command: click.Command, words: list[str], where: str) -> None:
    context = click.Context(command)
    options, used = set[str](), set[str]()
    while True:
        options.update(name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts))
        while isinstance(command, click.Group) and words and words[0].startswith("-"):  # its own, ahead of a command
            name, equals, _ = words.pop(0).partition("=")
            used.add(name)
            is_flag = any(getattr(each, "is_flag", False) for each in command.params if name in each.opts)
            if words and not equals and not is_flag and name not in {"--help", "--version"}:
                words.pop(0)
        if not isinstance(command, click.Group) or not words or not re.fullmatch("[a-z][a-z-]*", words[0]):
            break
        named = command.get_command(context, words.pop(0))
        assert named is not None, where
        command = named
    used |= {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used - {"--help", "--version"} <= options, where


def test_the_page_about_requests_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "requests.py"
    program.write_text("\n".join(blocks("docs/request-reply.md", "python")))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["reply b'HELLO'", "replies 1000", "reply b'BY HAND'"]
    assert not done.stderr


def test_the_page_about_finding_messages_is_one_program_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "finding.py"
    program.write_text("\n".join(blocks("docs/finding-messages.md", "python")))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        'found {"carrier": "UA", "flight": 1545} (\'UA1545\', \'N14228\') EWR',
        "complete True of 10",
        "of the aircraft 10",
        "same True",
        "stored True",
        "gates in flight 1 True",
        "gates dead %DLQ%gates",
    ]
