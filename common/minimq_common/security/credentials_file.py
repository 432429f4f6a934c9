"""The credentials file of a user: everything that a client needs to connect to a secured cluster."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.files.text_file import without_mark
from minimq_common.names import check_address, check_named
from minimq_common.security.certificates import Pair, Trust, check_pair, check_roots
from minimq_common.security.credentials import Credentials
from minimq_common.security.user_key import UserKey, parse_key
from minimq_common.security.watched import Watched
from minimq_common.text_units import expanded


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of a credentials file. Its `repr` shows no secrets."""

    ca: str
    nameservers: list[str] = []
    certificate: str = ""
    private_key: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nameservers={self.nameservers})"


class CredentialsFile:
    """Opened credentials. Thread-safe. New connections use the current content of the file."""

    def __init__(self, credentials: Credentials) -> None:
        where = str(credentials)
        if credentials.path:
            path = expanded(credentials.path).absolute()
            self._content = Watched([path], lambda found: _read(found[0], where))
        else:
            self._content = Watched([], lambda _: _read(without_mark(credentials.text.encode(), where), where))

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses of the name servers; empty if the file has none."""
        return tuple(self._content.get()[0].nameservers)

    def trust(self, *, at_once: bool = False) -> Trust:
        """Return the current TLS settings and key."""
        return self._content.get(at_once=at_once)[1]


def written(nameservers: Sequence[str], trust: Trust, about: str) -> str:
    import json  # imported here because clients do not need it

    lines = [f"# {about}"]
    if trust.pair is not None or trust.bearer is not None:
        lines.append("# Keep it secret: anyone who has it can act as this user.")
    if nameservers:
        lines.append(f"nameservers = {json.dumps(list(nameservers))}")
    parts = {"ca": trust.roots}
    if trust.pair is not None:
        parts |= {"certificate": trust.pair.certificate, "private_key": trust.pair.key}
    if trust.bearer is not None:
        lines.append(f'key = "{trust.bearer.text}"')
    lines += [f"{name} = '''\n{pem.decode('ascii').strip()}\n'''" for name, pem in parts.items()]
    return "\n".join(lines) + "\n"


def about_user(name: str) -> str:
    return f"Credentials of {name} for a minimq cluster."


def _read(data: bytes, where: str) -> tuple[_File, Trust]:
    import tomllib  # imported here because not all clients have credentials

    try:
        found = msgspec.convert(tomllib.loads(data.decode()), _File)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{where} is no credentials file of this release: {error}") from None
    except (ValueError, RecursionError):  # not shown: the parser's error may quote secrets
        raise InvalidArgument(f"{where} is no credentials file: it is not TOML") from None
    for address in found.nameservers:
        check_named(f"nameservers in {where}", check_address, address)
    if bool(found.certificate) != bool(found.private_key):
        raise InvalidArgument(f"{where} has one of certificate and private_key: both or none are needed")
    pair = Pair(found.certificate.encode(), found.private_key.encode()) if found.certificate else None
    trust = Trust(found.ca.encode(), pair, _bearer(found.key, where))
    check_roots(trust.roots, f"ca in {where}")
    if pair is not None:
        check_pair(pair, where)
    return found, trust


def _bearer(text: str, where: str) -> UserKey | None:
    if not text:
        return None
    try:
        return parse_key(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where} cannot be used: {error.message}") from None
