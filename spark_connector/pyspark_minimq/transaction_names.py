"""Names of the transactions of a write, made of the writer and the target.

Who writes to two topics does so under two names: an application may give the same number to both, as it does with two
tables of Delta Lake.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

from minimq.connectors import ONE_TIME_TRANSACTIONS
from pyspark_minimq.errors import MinimqSparkError

#: In place of the topic when rows say theirs.
_BY_COLUMN: Final = "columns"
#: Bytes of the digest of a topic. A topic itself may be longer than what a name has room for.
_DIGEST_BYTES: Final = 8
_APP_ID: Final = re.compile(r"[a-zA-Z0-9_.-]+")
#: Characters of the name of an application: what a name of a transaction has room for, with something to spare.
_MOST_OF_APP_ID: Final = 90


def of_application(app_id: str, topic: str | None) -> str:
    """Return the name of the writes of an application."""
    if len(app_id) > _MOST_OF_APP_ID:
        raise MinimqSparkError(
            f"txnAppId has {len(app_id)} characters, the limit is {_MOST_OF_APP_ID}: {app_id[:40]!r}..."
        )
    if not _APP_ID.fullmatch(app_id):
        raise MinimqSparkError(f"txnAppId is {app_id!r}: write letters, digits and the characters _ - .")
    return f"spark-app-{app_id}-{_target(topic)}"


def of_query(query: str, topic: str | None) -> str:
    """Return the name of the micro-batches of a query.

    With its target: what a copy of its checkpoint has written elsewhere is not what the query itself has to write.
    """
    return f"spark-{query}-{_target(topic)}"


def of_one_write() -> str:
    """Return a name that no other write has."""
    return f"{ONE_TIME_TRANSACTIONS}{uuid.uuid4()}"


def _target(topic: str | None) -> str:
    return _BY_COLUMN if topic is None else hashlib.blake2b(topic.encode(), digest_size=_DIGEST_BYTES).hexdigest()
