"""The client of a schema registry, over its REST interface."""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from http.client import HTTPException, HTTPResponse
from importlib.util import find_spec
from typing import Literal, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener
from uuid import UUID

import msgspec

from minimq.arguments import waiting_s
from minimq_common.errors import AccessDenied, InvalidArgument, MinimqError, NotAuthenticated, Unavailable

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
#: Bound of a response; schemas are far smaller.
_MAX_ANSWER_BYTES = 4 << 20
#: Query for the file descriptor of a Protobuf schema instead of its text.
_SERIALIZED = "?format=serialized"
_MAX_SHOWN = 200
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERROR = 200, 401, 403, 404, 500
_BUSY = (429, 502, 503, 504)
#: A registry's own codes for a missing subject, version or schema. A 404 without one comes from a proxy or a wrong URL.
_MISSING_CODES = (40401, 40402, 40403)
#: Pauses before the second, third and fourth attempt.
_PAUSES_S = (0.0, 0.4, 0.8)
#: How long the error of a registry that gave no answer is raised again, instead of a new request.
_OFFLINE_S = 1.0
#: Schemas and ids that are remembered.
_KEPT = 1000


class SchemaReference(msgspec.Struct, frozen=True):
    """A schema that another one refers to.

    Attributes:
        name: its name in the other schema.
        subject: the subject that it is registered under.
        version: its version of that subject.
    """

    name: str
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True):
    """A schema as registries store it.

    Attributes:
        text: its definition; for Protobuf, this or the file descriptor in base64.
        kind: its language.
        references: other schemas that it refers to.
    """

    text: str
    kind: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()


class RegisteredSchema(NamedTuple):
    """A schema and its identifiers in a registry.

    Attributes:
        schema: the schema.
        schema_id: its id.
        guid: its GUID; None if the registry is too old to assign any.
    """

    schema: Schema
    schema_id: int
    guid: UUID | None


class SchemaMissing(InvalidArgument):
    """A schema registry does not have a schema, a subject or a version."""

    code = "SCHEMA_MISSING"


class _RegistryAnswer(msgspec.Struct, rename="camel"):
    """The fields of responses that are used here."""

    id: int | None = None
    guid: UUID | None = None
    version: int | None = None
    schema: str | None = None
    schema_type: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Never send the credentials to another server."""


class SchemaRegistry:
    """The client of a schema registry. Thread-safe; a connection for each request.

    Caches schemas, which never change under their id. Retries a failed request three times: at once, then after 0.4 s
    and 0.8 s. All requests are idempotent.

    Args:
        url: its address, such as "http://127.0.0.1:8081".
        basic_auth: user and password.
        bearer_token: a token, or a plain function that returns the one that is valid now.
        ca_file: certificates of the authorities to trust, in PEM; None trusts those of the system.
        certificate_file: the certificate that this client shows, in PEM, with or without its private key.
        key_file: the private key of the certificate, in PEM, unencrypted; None if `certificate_file` has it.
        timeout_s: timeout in seconds of each attempt, to connect and to get a response.

    Raises:
        InvalidArgument: an argument is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        basic_auth: tuple[str, str] | None = None,
        bearer_token: str | Callable[[], str] | None = None,
        ca_file: str | None = None,
        certificate_file: str | None = None,
        key_file: str | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        _check_url(url)
        if basic_auth is not None and bearer_token is not None:
            raise InvalidArgument("give either basic_auth or bearer_token")
        if not 0 < waiting_s(timeout_s) <= 300:
            raise InvalidArgument("timeout_s must be above 0 and 300 at most")
        self.url = url.rstrip("/")
        self._bearer_token = bearer_token
        self._timeout_s = timeout_s
        self._headers = {"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE}
        if basic_auth is not None:
            self._headers["Authorization"] = f"Basic {_basic(basic_auth)}"
        tls = HTTPSHandler(context=_tls_context(ca_file, certificate_file, key_file))
        self._open = build_opener(_NoRedirects, tls).open  # by default through the proxies of the environment
        self._found = lru_cache(_KEPT)(self._ask_for)
        self._registered = lru_cache(_KEPT)(self._register)
        #: Why the registry gave no answer, and until when that is not tried again.
        self._offline: tuple[MinimqError, float] | None = None

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register a schema under a subject, unless it is registered already.

        Raises:
            InvalidArgument: the registry rejects the schema, for example as incompatible with the latest version.
            NotAuthenticated, AccessDenied: the registry rejects the credentials.
            Unavailable: the registry does not answer.
        """
        return self._registered(subject, schema, "/versions")

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return id and GUID of a registered schema. Raises `SchemaMissing`, and the errors of `register`."""
        return self._registered(subject, schema, "")

    def reference(self, name: str, subject: str, schema: Schema) -> SchemaReference:
        """Return a reference to a registered schema, for use in other schemas. Raises the errors of `lookup`."""
        answer = self._post(f"/subjects/{_quoted(subject)}", schema)
        return SchemaReference(name, subject, self._number(answer.version))

    def schema(self, schema_id: int | UUID, *, serialized: bool = False) -> RegisteredSchema:
        """Return the schema with an id or a GUID.

        Args:
            schema_id: the id or the GUID.
            serialized: for Protobuf, return the file descriptor in base64, even if it was registered as text.

        Raises:
            SchemaMissing: the registry has no such schema. Also the errors of `register`.
        """
        place = f"/schemas/guids/{schema_id}" if isinstance(schema_id, UUID) else f"/schemas/ids/{schema_id}"
        return self._found(place + _SERIALIZED * serialized)

    def version(
        self, subject: str, version: int | Literal["latest"] = "latest", *, serialized: bool = False
    ) -> RegisteredSchema:
        """Return a version of a subject. Raises `SchemaMissing`, and the errors of `register`."""
        place = f"/subjects/{_quoted(subject)}/versions/{version}{_SERIALIZED * serialized}"
        return (self._ask_for if version == "latest" else self._found)(place)

    def _ask_for(self, place: str) -> RegisteredSchema:
        answer = self._request("GET", place)
        if answer.schema is None:
            raise Unavailable(f"{self.url}{place} has answered without a schema: it is no schema registry")
        named = place.partition("?")[0].rpartition("/")[2]  # the id, which the response may omit
        schema_id = answer.id if answer.id is not None else int(named) if named.isdecimal() else 0
        schema = Schema(answer.schema, answer.schema_type, answer.references)
        return RegisteredSchema(schema, schema_id, answer.guid)

    def _register(self, subject: str, schema: Schema, verb: str) -> RegisteredSchema:
        answer = self._post(f"/subjects/{_quoted(subject)}{verb}", schema)
        return RegisteredSchema(schema, self._number(answer.id), answer.guid)

    def _post(self, place: str, schema: Schema) -> _RegistryAnswer:
        body: dict[str, object] = {"schema": schema.text}
        if schema.kind != "AVRO":
            body["schemaType"] = schema.kind
        if schema.references:
            body["references"] = msgspec.to_builtins(schema.references)
        return self._request("POST", f"{place}?normalize=false", json.dumps(body).encode())

    def _request(self, method: str, place: str, body: bytes | None = None) -> _RegistryAnswer:
        if self._offline is not None and time.monotonic() < self._offline[1]:
            raise self._offline[0].with_message(self._offline[0].message)
        headers = dict(self._headers)
        if self._bearer_token is not None:
            token = self._bearer_token if isinstance(self._bearer_token, str) else self._bearer_token()
            headers["Authorization"] = f"Bearer {_checked_token(token)}"
        request = Request(self.url + place, body, headers, method=method)
        failure: MinimqError = Unavailable(f"schema registry {self.url} does not answer")
        for pause_s in (*_PAUSES_S, 0.0):
            try:
                status, data = self._exchange(request)
                if status not in _BUSY:
                    return self._read(status, place, data)
                failure = self._error(status, place, data)
            except (OSError, HTTPException) as error:
                failure = Unavailable(f"schema registry {self.url} does not answer: {error}")
            time.sleep(pause_s)
        self._offline = failure, time.monotonic() + _OFFLINE_S
        raise failure

    def _exchange(self, request: Request) -> tuple[int, bytes]:
        answer: HTTPResponse | HTTPError
        try:
            answer = self._open(request, timeout=self._timeout_s)
        except HTTPError as error:  # any status but 2xx
            answer = error
        with answer:
            return answer.status or 0, answer.read(_MAX_ANSWER_BYTES + 1)

    def _read(self, status: int, place: str, data: bytes) -> _RegistryAnswer:
        if len(data) > _MAX_ANSWER_BYTES:
            raise InvalidArgument(f"{self.url}{place} answers with more than {_MAX_ANSWER_BYTES} bytes")
        if status != _OK:
            raise self._error(status, place, data)
        try:
            return msgspec.json.decode(data, type=_RegistryAnswer)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unavailable(f"{self.url}{place} does not answer as a schema registry does: {error}") from None

    def _error(self, status: int, place: str, data: bytes) -> MinimqError:
        try:
            fields = msgspec.json.decode(data, type=Mapping[str, object])
            code, said = fields.get("error_code"), str(fields["message"])
        except (msgspec.MsgspecError, KeyError, RecursionError):
            code, said = None, data.decode(errors="replace")
        text = f"schema registry {self.url} answers {status} to {place.partition('?')[0]}: {said[:_MAX_SHOWN]!r}"
        if status == _UNAUTHORIZED:
            return NotAuthenticated(f"{text}; give a valid basic_auth or bearer_token")
        if status == _FORBIDDEN:
            return AccessDenied(text)
        if status == _NOT_FOUND and code in _MISSING_CODES:
            return SchemaMissing(text)
        if status == _NOT_FOUND:
            return Unavailable(f"{text}; a proxy may answer in place of the registry: check the URL and the proxy")
        return (Unavailable if status >= _SERVER_ERROR or status in _BUSY else InvalidArgument)(text)

    def _number(self, number: int | None) -> int:
        if number is None:
            raise Unavailable(f"{self.url} has answered without an id: it is no schema registry")
        return number


def check_installed(library: str) -> None:
    """Raise `ModuleNotFoundError`, which names the extra to install, unless a library is installed."""
    if find_spec(library) is None:
        raise ModuleNotFoundError(f"minimq.schemas needs {library}: pip install 'minimq[schemas]'", name=library)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    try:
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isascii()
    except ValueError:  # the port is not a number, or too large
        is_address = False
    if not is_address or parts.username is not None or parts.query or parts.fragment:
        raise InvalidArgument(
            "the URL of the schema registry must be like http://127.0.0.1:8081, without query or fragment, and without "
            "a user: give basic_auth"
        )


def _basic(credentials: tuple[str, str]) -> str:
    given: object = credentials
    if not isinstance(given, tuple | list) or len(given) != 2 or ":" in credentials[0]:
        raise InvalidArgument("basic_auth must be a user, whose name has no colon, and a password")
    return b64encode(":".join(credentials).encode()).decode()


def _checked_token(token: object) -> str:
    if not isinstance(token, str) or not token.isprintable() or not token.isascii() or not token:
        raise InvalidArgument("the bearer token is no text of printable ASCII characters")
    return token


def _tls_context(ca_file: str | None, certificate_file: str | None, key_file: str | None) -> ssl.SSLContext | None:
    if key_file is not None and certificate_file is None:
        raise InvalidArgument("key_file needs certificate_file, the certificate of this key")
    if ca_file is None and certificate_file is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidArgument(f"ca_file {ca_file!r} cannot be read: {error.strerror or error}") from None
    if certificate_file is not None:
        try:
            context.load_cert_chain(certificate_file, key_file, password=lambda: "")  # never asks at a terminal
        except OSError as error:
            said = f"certificate_file {certificate_file!r} with key_file {key_file!r}"
            raise InvalidArgument(f"{said} cannot be used: {error.strerror or error}") from None
    return context


def _quoted(name: str) -> str:
    return quote(name, safe="")


def resolved(
    registry: SchemaRegistry, references: Sequence[SchemaReference], most: int = 100, *, serialized: bool = False
) -> dict[str, Schema]:
    """Return the schemas that `references` name, directly or indirectly, by name. Each follows those that it needs."""
    found: dict[str, Schema] = {}
    visited: set[str] = set()

    def visit(wanted: Sequence[SchemaReference]) -> None:
        for reference in wanted:
            if reference.name in visited:
                continue
            visited.add(reference.name)
            if len(visited) > most:
                raise InvalidArgument(f"the schema refers to more than {most} others")
            schema = registry.version(reference.subject, reference.version, serialized=serialized).schema
            visit(schema.references)
            found[reference.name] = schema

    visit(references)
    return found
