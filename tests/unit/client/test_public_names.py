"""The public names of the client: all there, loaded when they are first used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import minimq
import minimq.aio
import minimq.errors
from minimq_common import errors as common_errors
from support.cases import for_each
from support.command import environment

#: What costs time, or is no use to who needs a name of another room.
HEAVY = ("grpc", "google.protobuf", "lmdb", "msgspec", "asyncio", "click", "minimq_common")


def imports_for_type_checkers() -> dict[str, str]:
    """Return where type checkers are told that each name comes from."""
    tree = ast.parse(Path(minimq.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, check=True, timeout=60, text=True
    ).stdout


def test_every_public_name_is_what_type_checkers_see() -> None:
    seen = imports_for_type_checkers()
    assert sorted(seen) == sorted(minimq.__all__)
    for name, module in seen.items():
        home = import_module(module)
        assert getattr(minimq, name) is getattr(home, name), name


def test_the_import_alone_loads_nothing_that_is_heavy() -> None:
    loaded = set(python("import sys, minimq; print(*sys.modules)").split())
    assert "minimq" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_name_loads_what_it_needs_and_no_more() -> None:
    loaded = set(python("import sys; from minimq import Message; print(*sys.modules)").split())
    assert "minimq_common.model" in loaded
    assert "grpc" not in loaded


def test_operations_load_grpc_when_they_run_so_that_help_is_quick() -> None:
    features = ("dead_letters", "delayed", "half_messages", "search")
    modules = (
        "admin.topic_changes",
        "admin.group_changes",
        "admin.brokers",
        *(f"features.{each}.operations" for each in features),
    )
    program = f"import sys, {', '.join(f'minimq.{each}' for each in modules)}; print(*sys.modules)"
    loaded = set(python(program).split())
    assert "minimq.admin.topic_changes" in loaded
    assert loaded.isdisjoint({"grpc", "asyncio"})


def test_a_producer_without_credentials_loads_nothing_of_tls() -> None:
    program = "import sys; from minimq import Producer; Producer(credentials='').close(); print(*sys.modules)"
    loaded = set(python(program).split())
    assert "minimq.sending.sender" in loaded
    assert loaded.isdisjoint({"tomllib", "json", "hashlib", "urllib.parse", "minimq_common.security.certificates"})


# ---- what the objects can do ----------------------------------------------------------------------


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


#: These take what is asynchronous as well.
ASYNCHRONOUS_TOO = {("Producer", "send_many"), ("PushConsumer", "start"), ("TransactionalProducer", "__init__")}


@for_each("name", sorted(minimq.aio.__all__))
def test_both_faces_are_called_alike(name: str) -> None:
    plain, other = getattr(minimq, name), getattr(minimq.aio, name)
    for member in sorted({"__init__", *public(plain)}):
        if not callable(getattr(plain, member)):
            continue
        there, here = (inspect.signature(getattr(face, member)).parameters for face in (plain, other))
        if (name, member) == ("Producer", "send_async"):  # a future of asyncio has callbacks of its own
            there = {key: value for key, value in there.items() if key != "callback"}  # type: ignore[assignment]
        if (name, member) in ASYNCHRONOUS_TOO:
            assert list(here) == list(there), member
        else:
            assert list(here.values()) == list(there.values()), member


def test_a_class_of_ones_own_has_the_methods_of_the_asynchronous_admin() -> None:
    class Named:
        title = ""

        def __init_subclass__(cls, *, title: str) -> None:
            cls.title = title

    class Own(minimq.aio.Admin, Named, title="own"):
        pass

    assert Own.title == "own"
    assert inspect.iscoroutinefunction(Own.describe_topic)
    assert all(getattr(Own, name) is getattr(minimq.aio.Admin, name) for name in public(minimq.aio.Admin))


def test_all_errors_are_public() -> None:
    def is_error(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, common_errors.MinimqError)

    assert minimq.errors.__all__ == sorted(name for name, value in vars(common_errors).items() if is_error(value))
    assert all(getattr(minimq.errors, name) is getattr(common_errors, name) for name in minimq.errors.__all__)
