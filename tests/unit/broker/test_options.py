"""The options of the broker, and its command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from minimq_broker.__main__ import main
from minimq_broker.options import BrokerOptions
from minimq_common.errors import InvalidArgument

REMEDY = "give --controller HOST:PORT of a name server that was started with --controller-dir DIR"


@pytest.mark.parametrize(
    "flags", [["--id", "1"], ["--role", "slave"], ["--role", "sync-master"], ["--role", "sync-master", "--id", "3"]]
)
def test_a_replica_without_a_controller_is_refused_in_one_sentence(flags: list[str]) -> None:
    result = CliRunner().invoke(main, flags)

    assert result.exit_code == 2
    assert result.output.endswith(f"{REMEDY}\n")


def test_a_synchronous_master_that_waits_for_nobody_may_be_alone() -> None:
    assert BrokerOptions(role="sync-master", min_in_sync=1).controller == ""


def test_a_set_without_members_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="--min-in-sync is 0"):
        BrokerOptions(min_in_sync=0)
