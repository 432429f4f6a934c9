"""The options of the broker, and its command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from minimq_broker.__main__ import main
from minimq_broker.assembly import BrokerOptions
from minimq_common.errors import InvalidArgument
from support.cases import for_each

REMEDY = "give --controller HOST:PORT of a name server that was started with --controller-dir DIR"


@for_each(
    "flags", [["--id", "1"], ["--role", "slave"], ["--role", "sync-master"], ["--role", "sync-master", "--id", "3"]]
)
def test_a_replica_without_a_controller_is_rejected_in_one_sentence(flags: list[str]) -> None:
    result = CliRunner().invoke(main, flags)

    assert result.exit_code == 2
    assert result.output.endswith(f"{REMEDY}\n")


def test_a_set_without_members_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="--min-in-sync is 0"):
        BrokerOptions(min_in_sync=0)


@for_each("controller", ["127.0.0.1", "etcd://", "etcd://a:1,b", "http://a:1", "a:1,b:2", "a:99999"])
def test_what_names_no_controller_is_rejected(controller: str) -> None:
    result = CliRunner().invoke(main, ["--controller", controller])

    assert result.exit_code == 2
    assert f"--controller is '{controller}': write HOST:PORT of a name server" in result.output


def test_a_replica_number_has_a_limit() -> None:
    result = CliRunner().invoke(main, ["--id", "9" * 23, "--controller", "127.0.0.1:9876"])

    assert result.exit_code == 2
    assert "--id" in result.output
    assert BrokerOptions(broker_id=(1 << 31) - 1, controller="etcd://a:1, b:2/").broker_id


@pytest.mark.parametrize("controller", ["", "127.0.0.1:9876"])
def test_a_lease_is_rejected_where_another_one_decides_on_it(controller: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--term-lease is 5: .*a name server .* has a --term-lease of its own"):
        BrokerOptions(controller=controller, term_lease_s=5)
    assert BrokerOptions(controller="etcd://127.0.0.1:2379", term_lease_s=5).term_lease_s == 5
