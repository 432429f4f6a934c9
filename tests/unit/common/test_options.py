from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner, Result

from minimq_common.errors import InvalidArgument
from minimq_common.names import check_address
from minimq_common.serving.options import check_limits, from_command_line, option


@dataclass(frozen=True, slots=True)
class Options:
    listen: str = option("127.0.0.1:0", "Address to serve at.", metavar="HOST:PORT")
    broker_id: int = option(0, "0 for a master.", flag="--id", minimum=0, maximum=9)
    expire_after_s: float = option(120.0, "Silence until removal.", minimum=1)
    segment_bytes: int = option(1 << 30, "Size of a segment.")
    readable: bool = option(True, "Whether it can be read.")
    nameserver: tuple[str, ...] = option(("127.0.0.1:9876",), "Name servers.", metavar="HOST:PORT[,HOST:PORT]")
    ports: tuple[int, ...] = option((), "Further ports.")
    role: Literal["master", "slave"] = option("master", "What it is.")
    flush: Literal["sync", "async"] = option("sync", "When it acknowledges.")
    data_dir: Path | None = option(None, "Where it writes.")

    def __post_init__(self) -> None:
        check_limits(self)


def run(*args: str, **environment: str) -> tuple[Options | None, Result]:
    seen: list[tuple[Options, bool]] = []

    @click.command()
    @from_command_line(Options, env_prefix="MINIMQ_TEST")
    @click.option("--more", is_flag=True)
    def main(options: Options, more: bool) -> None:
        seen.append((options, more))

    result = CliRunner().invoke(main, args, env=environment)
    return (seen[0][0] if seen else None), result


def test_without_arguments_every_option_has_its_default() -> None:
    assert run()[0] == Options()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--listen", "h:1"], Options(listen="h:1")),
        (["--id", "3"], Options(broker_id=3)),
        (["--expire-after", "1.5"], Options(expire_after_s=1.5)),
        (["--no-readable"], Options(readable=False)),
        (["--nameserver", "a:1, b:2,"], Options(nameserver=("a:1", "b:2"))),
        (["--nameserver", ""], Options(nameserver=())),
        (["--ports", "1,2"], Options(ports=(1, 2))),
        (["--role", "slave"], Options(role="slave")),
        (["--flush", "async"], Options(flush="async")),
        (["--data-dir", "/tmp/x"], Options(data_dir=Path("/tmp/x"))),
        (["--more"], Options()),
    ],
)
def test_flags(args: list[str], expected: Options) -> None:
    options, result = run(*args)
    assert options == expected, result.output


def test_variables_stand_behind_flags() -> None:
    environment = {
        "MINIMQ_TEST_EXPIRE_AFTER": "7",
        "MINIMQ_TEST_READABLE": "false",
        "MINIMQ_TEST_NAMESERVER": "a:1,b:2",
    }
    expected = Options(expire_after_s=7, readable=False, nameserver=("a:1", "b:2"))
    assert run(**environment)[0] == expected
    options, _ = run("--expire-after", "8", "--readable", "--nameserver", "c:3", **environment)
    assert options == Options(expire_after_s=8, readable=True, nameserver=("c:3",))


@pytest.mark.parametrize(
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


def test_an_error_names_the_option_whose_value_it_quotes_and_the_variable_that_was_set() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Options, "__post_init__", lambda self: check_address(self.listen))
        quoted = run("--listen", "nowhere")[1].output
        assert "--listen: 'nowhere' is not an address: write HOST:PORT" in quoted
        assert "(MINIMQ_TEST" not in quoted
        assert "--listen: 'no' is not" in (output := run(MINIMQ_TEST_LISTEN="no")[1].output)
        assert "(MINIMQ_TEST_LISTEN)" in output
    output = run(MINIMQ_TEST_EXPIRE_AFTER="0")[1].output
    assert "--expire-after is 0.0: it must be at least 1 (MINIMQ_TEST_EXPIRE_AFTER)" in output


def test_the_help_says_everything() -> None:
    text = " ".join(run("--help")[1].output.split())
    for part in (
        "--listen HOST:PORT Address to serve at.",
        "--expire-after SECONDS",
        "--segment-bytes BYTES",
        "--readable / --no-readable",
        "--role [master|slave]",
        "--flush [sync|async]",
        "MINIMQ_TEST_EXPIRE_AFTER",
        "default: 120.0",
        "default: 127.0.0.1:9876",
        "default: sync",
    ):
        assert part in text


def test_limits_hold_in_python_too() -> None:
    with pytest.raises(InvalidArgument, match="--expire-after is 0: it must be at least 1"):
        Options(expire_after_s=0)


def test_an_unknown_type_is_a_mistake_of_the_programmer() -> None:
    @dataclass(frozen=True)
    class Odd:
        table: dict[str, str] | None = option(None, "No flag can say this.")

    with pytest.raises(TypeError, match="no command-line type"):
        from_command_line(Odd, env_prefix="X")(lambda options: None)
