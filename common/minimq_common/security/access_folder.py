"""The users and rules in the folder of a server's secrets, with which it begins, and which may be edited there."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, from_toml
from minimq_common.security.server_secrets import ACCESS, CLUSTER_KEY
from minimq_common.security.shared_access import SharedAccess
from minimq_common.security.watched import Watched
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES

log = logging.getLogger(__name__)

#: Seconds between two looks at the file.
_LOOK_S = 0.4


class AccessFolder(PeriodicTask):
    """The document of a server, of which its file `access.toml` is one source. Lives on one event loop."""

    def __init__(self, path: Path, *, only_reports: bool = False, max_age_s: float = math.inf) -> None:
        super().__init__("access file", self._follow, _LOOK_S, log)
        self._path = path
        self.shared = SharedAccess(only_reports=only_reports, max_age_s=max_age_s)
        self._file: Watched[AccessDocument] | None = None
        self._seen: AccessDocument | None = None
        if path.exists():
            self._open()

    def _follow(self) -> None:
        found = self._look()
        if found is None or found is self._seen:
            return
        self._seen = found
        in_force = self.shared.rank.version
        if found.version <= in_force and found.digest != self.shared.rank.digest:
            log.warning(
                "access: the file is not in force: its version must be larger, or use `minimq user` and "
                "`minimq access apply` with the credentials of an administrator file=%s version=%d in_force=%d",
                self._path,
                found.version,
                in_force,
            )
        if found.version > in_force:
            self.shared.offer(found, ACCESS)

    def _look(self) -> AccessDocument | None:
        if self._file is not None:
            return self._file.get()
        if self._path.exists():
            self._open()
        return self._seen

    def _open(self) -> None:
        self._file = Watched([self._path], self._read, fresh_s=_LOOK_S / 2, most_bytes=MAX_DOCUMENT_BYTES)
        self._seen = self._file.get()
        self.shared.offer(self._seen, ACCESS)

    def _read(self, found: Sequence[bytes]) -> AccessDocument:
        try:
            return from_toml(found[0])
        except InvalidArgument as error:
            raise InvalidArgument(f"{self._path}: {error.message}") from None


def access_of(directory: Path | None, *, only_reports: bool = False, max_age_s: float = 0.0) -> AccessFolder | None:
    """Return the users and rules in a folder of secrets; None when nobody needs a key."""
    if directory is None:
        return None
    if (directory / CLUSTER_KEY).exists():
        return AccessFolder(directory / ACCESS, only_reports=only_reports, max_age_s=max_age_s or math.inf)
    if (directory / ACCESS).exists():
        raise InvalidArgument(
            f"{directory} has {ACCESS} and no {CLUSTER_KEY}, with which servers authenticate each other: copy it from "
            f"another server, or remove {ACCESS} to require no keys"
        )
    log.warning("access: no keys are required, since there is no file cluster.key directory=%s", directory)
    return None
