"""The options of reads and writes for the address and the credentials of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from minimq import Credentials
from minimq.connectors import check_address
from minimq.errors import InvalidArgument
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Values


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """A cluster, and the user that asks it. No `repr` shows what is secret.

    Attributes:
        nameserver: HOST:PORT of each, separated by commas; None for those of the credentials, or 127.0.0.1:9876.
        credentials: of the user; None for those that the variable MINIMQ_CREDENTIALS of a node names, or for none.
    """

    nameserver: str | None = None
    credentials: Credentials | None = None


def connection_of(values: Values) -> ConnectionOptions:
    """Return the connection that options say."""
    path = values.get("credentials", lambda _, text: Credentials(path=text))
    # Spark shows no value of an option with "secret" in its name.
    secret = values.get("credentialsSecret", lambda _, text: Credentials.from_text(text))
    if path and secret:
        raise MinimqSparkError(
            "credentials and credentialsSecret are given: write the path of a file that each node has, or its content"
        )
    return ConnectionOptions(values.get("nameserver", _addresses), path or secret)


def _addresses(option: str, text: str) -> str:
    try:
        for address in text.split(","):
            check_address(address.strip())
    except InvalidArgument as error:
        raise MinimqSparkError(f"{option}: {error.message}") from None
    return text
