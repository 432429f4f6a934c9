"""The options of the broker, and its command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from minimq_broker.__main__ import main
from minimq_broker.options import BrokerOptions
from minimq_common.errors import InvalidArgument


def test_a_slave_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidArgument, match=r"^--id is 1: slaves do not replicate yet, so it has to be 0$"):
        BrokerOptions(broker_id=1)
    result = CliRunner().invoke(main, ["--id", "2"])
    assert result.exit_code == 2
    assert result.output.endswith("Error: --id is 2: slaves do not replicate yet, so it has to be 0\n")
