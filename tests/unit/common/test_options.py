"""Options from flags, variables and a file: what they may say, which of them wins, and what is said of mistakes."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner, Result

from minimq_broker.__main__ import main as broker
from minimq_common.serving import daemon
from minimq_common.serving.options import check_limits, from_command_line, option
from minimq_nameserver.__main__ import main as nameserver
from support.cases import for_each


@dataclass(frozen=True, slots=True)
class Options:
    listen: str = option("127.0.0.1:0", "Address to serve at.", metavar="HOST:PORT")
    broker_id: int = option(0, "0 for a master.", flag="--id", minimum=0, maximum=9)
    expire_after_s: float = option(120.0, "Silence until removal.", minimum=1)
    nameserver: tuple[str, ...] = option(("127.0.0.1:9876",), "Name servers.")
    ports: tuple[int, ...] = option((), "Further ports.")
    role: Literal["master", "slave"] = option("master", "What it is.")
    flush: Literal["sync", "async"] = option("sync", "When it acknowledges.")
    data_dir: Path | None = option(None, "Where it writes.")
    segment_bytes: int = option(1 << 20, "Size of a file.")

    def __post_init__(self) -> None:
        check_limits(self)


EVERYTHING = """
listen = "h:1"
id = 3
expire-after = 7
nameserver = ["a:1", "b:2"]
ports = [1, 2]
role = "slave"
flush = "async"
data-dir = "somewhere"
segment-bytes = 4096
"""
EXPECTED = Options("h:1", 3, 7.0, ("a:1", "b:2"), (1, 2), "slave", "async", Path("somewhere"), 4096)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def run(*args: str | Path, **environment: str) -> tuple[Options | None, Result]:
    seen: list[Options] = []

    @click.group(invoke_without_command=True)
    @from_command_line(Options, env_prefix="MINIMQ_TEST")
    def main(options: Options) -> None:
        seen.append(options)

    @main.command()
    def check() -> None:
        pass

    result = CliRunner().invoke(main, [str(arg) for arg in args], env=environment)
    return (seen[0] if seen else None), result


def test_every_option_can_be_set(file: Path) -> None:
    file.write_text(EVERYTHING)
    assert [name for name in Options.__slots__ if getattr(EXPECTED, name) == getattr(Options(), name)] == []
    options, result = run("--config", file)
    assert options == EXPECTED, result.output
    assert run(MINIMQ_TEST_CONFIG=str(file))[0] == EXPECTED
    assert run("--config", file, "check")[0] == EXPECTED


@pytest.mark.parametrize(
    ("duration", "seconds", "size", "number"), [("3d", 259_200, "64MiB", 64 << 20), ("1m30s", 90, "1.5KB", 1500)]
)
def test_a_duration_and_a_size_may_have_units(
    file: Path, duration: str, seconds: float, size: str, number: int
) -> None:
    file.write_text(f'expire-after = "{duration}"\nsegment-bytes = "{size}"')
    expected = Options(expire_after_s=seconds, segment_bytes=number)
    assert run("--config", file)[0] == expected
    assert run("--expire-after", duration, "--segment-bytes", size)[0] == expected
    assert run(MINIMQ_TEST_EXPIRE_AFTER=duration, MINIMQ_TEST_SEGMENT_BYTES=size)[0] == expected


def test_a_flag_wins_over_a_variable_and_that_over_the_file(file: Path) -> None:
    file.write_text('expire-after = 7\nlisten = "file:1"\nid = 5')
    variables = {"MINIMQ_TEST_EXPIRE_AFTER": "8", "MINIMQ_TEST_LISTEN": "variable:1"}
    options, _ = run("--config", file, "--expire-after", "9", **variables)
    assert options == Options(listen="variable:1", broker_id=5, expire_after_s=9)


@for_each(
    ("text", "said"),
    [
        ("lisen = 'h:1'", "there is no option 'lisen': did you mean 'listen'?"),
        ("data_dir = 'x'", "there is no option 'data_dir': did you mean 'data-dir'?"),
        ("expire_after_s = 3", "there is no option 'expire_after_s': did you mean 'expire-after'?"),
        ("expire-after-timeout = 3", "there is no option 'expire-after-timeout': did you mean 'expire-after'?"),
        ("id-of-broker = 3", "there is no option 'id-of-broker': did you mean 'id'?"),
        ("[xyz]\nid = 3", "there is no option 'xyz'"),
        ("id = 'x'", 'id is "x": it has to be a whole number'),
        ("id = 1.0", "id is 1.0: it has to be a whole number"),
        ("id = true", "id is true: it has to be a whole number"),
        ("expire-after = '7'", "expire-after is \"7\": it has to be a number of seconds, or text such as '3d'"),
        ("expire-after = false", "expire-after is false: it has to be a number of seconds, or text such as '3d'"),
        (
            "segment-bytes = 'big'",
            "segment-bytes is \"big\": it has to be a whole number of bytes, or text such as '10GB'",
        ),
        ("nameserver = 'a:1,b:2'", 'nameserver is "a:1,b:2": it has to be a list in brackets, and each item a string'),
        ("ports = [1, '2']", 'ports is [1, "2"]: it has to be a list in brackets, and each item a whole number'),
        ("role = 'boss'", 'role is "boss": it has to be one of "master", "slave"'),
        ("flush = 3", 'flush is 3: it has to be one of "sync", "async"'),
        ("data-dir = 2020-01-01", 'data-dir is "2020-01-01": it has to be a string'),
        ("listen.host = 'h'", 'listen is {"host": "h"}: it has to be a string'),
    ],
)
def test_a_mistake_names_file_and_key(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    options, result = run("--config", file)
    assert options is None
    assert result.exit_code == 2
    assert result.output.endswith(f"Error: {file}: {said}\n")


def test_a_file_that_cannot_be_read(file: Path) -> None:
    assert f"cannot read {file}: No such file" in run("--config", file)[1].output
    assert "Is a directory" in run("--config", file.parent)[1].output
    file.write_text("id = ")
    assert f"{file} is not a TOML file: Invalid value (at end of document)" in run("--config", file)[1].output
    file.write_bytes(b"listen = '\xff'")
    assert f"{file} is not a TOML file: 'utf-8'" in run(MINIMQ_TEST_CONFIG=str(file))[1].output


@pytest.mark.parametrize(("name", "command"), [("minimq-broker", broker), ("minimq-nameserver", nameserver)])
def test_the_example_has_every_option_at_its_default(
    name: str, command: click.Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(daemon, "run", lambda _, server, **__: started.append(server._options))
    text = CliRunner().invoke(command, ["--example-config"], prog_name=name).output
    assert text.startswith(f"# Configuration of {name}: ")
    assert max(map(len, text.splitlines())) <= 120
    assert tomllib.loads(text) == {}
    file.write_text(re.sub("^#(?! )", "", text, flags=re.MULTILINE))
    flags = {parameter.opts[0][2:] for parameter in command.params if getattr(parameter, "envvar", None)}
    assert tomllib.loads(file.read_text()).keys() == flags - {"config"}
    assert CliRunner().invoke(command, ["--config", str(file)]).output == ""
    assert CliRunner().invoke(command, []).output == ""
    assert len(started) == 2
    assert started[0] == started[1]


@pytest.mark.parametrize("command", [broker, nameserver])
def test_the_help_lists_each_option_once_in_a_section_and_fits_two_screens(command: click.Command) -> None:
    output = CliRunner().invoke(command, ["--help"], terminal_width=80).output
    others = output.partition("\nOther options:\n")[2]
    for parameter in command.params:
        assert len(re.findall(rf"(?m)^  {parameter.opts[-1]}\b(?!-)", output)) == 1, parameter.opts
    listed = re.findall(r"(?m)^  (?:-h, )?(--[a-z-]+)", others.partition("\nCommands:")[0])
    assert listed == ["--version", "--config", "--example-config", "--help"]
    assert len(output.splitlines()) <= 120


@pytest.mark.parametrize(("command", "most"), [(broker, 40), (nameserver, 20)])
def test_there_are_few_options_and_each_has_a_reason_to_change_it(command: click.Command, most: int) -> None:
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert len(options) + 1 <= most  # with --help
    for each in options:
        own = getattr(each, "section", None) is not None
        assert not own or re.search(r"[.] (Set|Raise|Lower) ", each.help or ""), each.opts


# ---- Flags and variables alone ------------------------------------------------------------------


@for_each(
    ("args", "said"),
    [
        (["--id", "-1"], "--id is -1: it must be at least 0"),
        (["--id", "10"], "--id is 10: it must be at most 9"),
        (["--expire-after", "nan"], "--expire-after is nan: it must be a finite number"),
        (["--expire-after", "soon"], "'soon' is neither a number of seconds"),
        (["--ports", "1,x"], "'x' is not a valid integer"),
        (["--role", "other"], "'other' is not one of 'master', 'slave'"),
        (["--flush", "never"], "'never' is not one of 'sync', 'async'"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_names_the_flag(args: list[str], said: str) -> None:
    options, result = run(*args)
    assert options is None
    assert result.exit_code == 2
    assert said in result.output
    assert args[0] in result.output


@for_each(
    ("command", "flag", "value"),
    [
        *((broker, flag, value) for flag in ("--listen", "--advertise", "--metrics", "--nameserver")
          for value in ("h:x", "localhost", "0", "h:1\r", "h\r:1", '"h:1"', "h b:1")
          if (flag, value) != ("--nameserver", "h:1\r")),
        *((broker, flag, value) for flag in ("--name", "--cluster") for value in ("0 ", "a b")),
        *((nameserver, flag, "0") for flag in ("--listen", "--metrics")),
        *((broker, flag, value) for flag in ("--data-dir", "--secrets", "--etcd-secrets")
          for value in ("data\r", '"data"', "'data'", "da\nta", "data\x1b")),
        *((nameserver, flag, "data\n") for flag in ("--controller-dir", "--secrets")),
    ],
)  # fmt: skip
def test_a_wrong_address_name_or_path_is_blamed_on_its_option(
    command: click.Command, flag: str, value: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "run", pytest.fail)
    variable = ("MINIMQ_BROKER_" if command is broker else "MINIMQ_NAMESERVER_") + flag[2:].replace("-", "_").upper()
    key = flag.removeprefix("--")
    file.write_text(f"{key} = {json.dumps([value] if key == 'nameserver' else value)}")
    for args, environment, source in (
        ([flag, value], {}, ""),
        ([], {variable: value}, f" ({variable})"),
        (["--config", str(file)], {}, f" ({key} in {file})"),
    ):
        result = CliRunner().invoke(command, args, env=environment)
        assert result.exit_code == 2
        assert re.search(rf"Error: {flag}[: ]", result.output)
        assert result.output.rstrip().endswith(source)
