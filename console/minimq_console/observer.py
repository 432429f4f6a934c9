"""The view of a cluster with the rights of one user."""

from __future__ import annotations

from collections.abc import Sequence

from minimq import Admin, Cluster
from minimq.receiving.range_reader import RangeOptions, RangeReader
from minimq_common.security.credentials import CredentialsArgument
from minimq_console.sampler import Sampler

#: Seconds for a call of a page to a server. One that is lost may be tried twice, and a page takes no more than two.
_PAGE_CALL_S = 0.85
#: Seconds for a call of the sampler: nobody waits for it.
_SAMPLER_CALL_S = 2.0
#: Seconds for a call of an action, which runs beside the pages.
_ACTION_CALL_S = 10.0


class Observer:
    """Sees a cluster as one user may. Thread-safe."""

    def __init__(
        self,
        nameserver: str | Sequence[str] | None,
        credentials: CredentialsArgument | None = None,
        interval_s: float = 2.0,
    ) -> None:
        self.cluster = Cluster(nameserver, credentials=credentials)
        self.admin = Admin(self.cluster, timeout_s=_PAGE_CALL_S)
        self.changer = Admin(self.cluster, timeout_s=_ACTION_CALL_S)
        self._patient = Admin(self.cluster, timeout_s=_SAMPLER_CALL_S)
        self.reader = RangeReader(self.cluster, RangeOptions(answer_timeout_s=_PAGE_CALL_S, patience_s=_PAGE_CALL_S))
        self.sampler = Sampler(self._patient, interval_s)

    def start(self) -> None:
        """Begin to look."""
        self.sampler.start()

    def close(self) -> None:
        """End the sampler, and close all connections. Idempotent."""
        self.sampler.stop()
        self.reader.close()
        self._patient.close()
        self.changer.close()
        self.admin.close()
        self.cluster.close()
