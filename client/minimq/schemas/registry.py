"""The client of a schema registry, over its REST interface."""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

import msgspec

from minimq.arguments import waiting_s
from minimq_common.errors import AccessDenied, InvalidArgument, MinimqError, NotAuthenticated, Unavailable

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
#: Bound of a response; schemas are far smaller.
_MAX_ANSWER_BYTES = 4 << 20
#: Query for the file descriptor of a Protobuf schema instead of its text.
_SERIALIZED = "?format=serialized"
_MAX_SHOWN = 200
_READ_BYTES = 1 << 16
#: How long the cache remembers that the registry lacks a schema.
_MISSING_S = 30
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _SERVER_ERROR = 200, 401, 403, 404, 500
_BUSY = (429, 502, 503, 504)
#: A registry's own codes for a missing subject, version or schema. A 404 without one comes from a proxy or a wrong URL.
_MISSING_CODES = (40401, 40402, 40403)
#: How long the error of a request that has failed twice is raised again instead of a new request; doubles with each
#: further failure.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
#: Most failed requests that are remembered.
_MAX_FAILURES = 1_000


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


class _Failure(NamedTuple):
    error: MinimqError
    failures: int
    until: float


class _RegistryAnswer(msgspec.Struct, rename="camel"):
    """The fields of responses that are used here."""

    id: int | None = None
    guid: UUID | None = None
    version: int | None = None
    schema: str | None = None
    schema_type: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()


class SchemaRegistry:
    """The client of a schema registry. Thread-safe; connects at the first request.

    Caches schemas, which never change under their id. Retries a failed request three times, with backoff from 0.2 s on;
    all requests are idempotent.

    Args:
        url: its address, such as "http://127.0.0.1:8081".
        basic_auth: user and password.
        bearer_token: a token, or a plain function that returns the one that is valid now.
        ca_file: certificates of the authorities to trust, in PEM; None trusts those of the system.
        certificate_file: the certificate that this client shows, in PEM, with or without its private key.
        key_file: the private key of the certificate, in PEM, unencrypted; None if `certificate_file` has it.
        proxy: URL of an HTTP proxy, such as "http://user:password@proxy:3128"; "" uses none. None uses `HTTPS_PROXY`,
            `HTTP_PROXY` and `NO_PROXY` of the environment.
        timeout_s: timeout in seconds of each attempt, to connect and to get a response.
        cache_schemas: maximum number of schemas in the cache.

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
        proxy: str | None = None,
        timeout_s: float = 5.0,
        cache_schemas: int = 1000,
    ) -> None:
        _check_url(url)
        if basic_auth is not None and bearer_token is not None:
            raise InvalidArgument("give either basic_auth or bearer_token")
        if not 0 < waiting_s(timeout_s) <= 300 or cache_schemas < 1:
            raise InvalidArgument("timeout_s must be above 0 and 300 at most, cache_schemas 1 at least")
        check_installed("urllib3")
        import urllib3  # serializers without a registry do not need it

        self.url = url.rstrip("/")
        self._bearer_token = bearer_token
        self._timeout_s = timeout_s
        self._headers = {"Accept": _CONTENT_TYPE, "Accept-Encoding": "identity", "Content-Type": _CONTENT_TYPE}
        if basic_auth is not None:
            self._headers["Authorization"] = f"Basic {_basic(basic_auth)}"
        retries = urllib3.Retry(
            total=3,
            redirect=False,  # never send the credentials to another server
            backoff_factor=0.2,
            status_forcelist=_BUSY,
            allowed_methods=None,
            raise_on_status=False,
            raise_on_redirect=False,
            respect_retry_after_header=False,  # which could block for days
        )
        self._failures = urllib3.exceptions.HTTPError
        timeout = urllib3.Timeout(connect=timeout_s, read=timeout_s)
        given: dict[str, Any] = {
            "maxsize": 4,
            "timeout": timeout,
            "retries": retries,
            "ssl_context": _tls_context(ca_file, certificate_file, key_file),
        }
        proxy = _proxy_of(url) if proxy is None else proxy
        if proxy:
            user = _proxy_user(proxy)
            headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
            self._http: urllib3.PoolManager = urllib3.ProxyManager(proxy, proxy_headers=headers, **given)
        else:
            self._http = urllib3.PoolManager(**given)
        self._found = lru_cache(cache_schemas)(self._find)
        self._asked = lru_cache(cache_schemas)(self._ask_for)
        self._registered = lru_cache(cache_schemas)(self._register)
        #: The latest failure of each request that has not succeeded since.
        self._failed: dict[tuple[str, str, bytes | None], _Failure] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.clear()

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
        if version != "latest":
            return self._found(place)
        found = self._ask_for(place, 0)
        if found is None:
            raise SchemaMissing(f"{self.url} has no schema at {place}")
        return found

    # ---- requests -------------------------------------------------------------------------------

    def _find(self, place: str) -> RegisteredSchema:
        found = self._asked(place, int(time.monotonic() / _MISSING_S))
        if found is None:
            raise SchemaMissing(f"{self.url} has no schema at {place}")
        return found

    def _ask_for(self, place: str, _period: int) -> RegisteredSchema | None:
        try:
            answer = self._request("GET", place)
        except SchemaMissing:
            return None
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
        key = (method, place, body)
        known = self._failed.get(key)
        if known is not None and time.monotonic() < known.until:
            raise known.error.with_message(known.error.message)
        try:
            answer = self._send(method, place, body)
        except MinimqError as error:
            count = 1 if known is None else known.failures + 1
            pause_s = 0.0 if count == 1 else min(_FIRST_PAUSE_S * 2 ** min(count - 2, 10), _MAX_PAUSE_S)
            if len(self._failed) >= _MAX_FAILURES:
                self._failed.clear()
            self._failed[key] = _Failure(error, count, time.monotonic() + pause_s)
            raise
        self._failed.pop(key, None)
        return answer

    def _send(self, method: str, place: str, body: bytes | None) -> _RegistryAnswer:
        headers = dict(self._headers)
        if self._bearer_token is not None:
            token = self._bearer_token if isinstance(self._bearer_token, str) else self._bearer_token()
            headers["Authorization"] = f"Bearer {_checked_token(token)}"
        try:
            answer = self._http.request(
                method, self.url + place, body=body, headers=headers, preload_content=False, decode_content=False
            )
            try:
                data = self._body_of(answer)
            finally:
                answer.close() if answer.length_remaining else answer.release_conn()
        except self._failures as error:
            raise Unavailable(f"schema registry {self.url} does not answer: {error}") from None
        if len(data) > _MAX_ANSWER_BYTES:
            raise InvalidArgument(f"{self.url}{place} answers with more than {_MAX_ANSWER_BYTES} bytes")
        if answer.status != _OK:
            raise self._error(answer.status, place, data)
        try:
            return msgspec.json.decode(data, type=_RegistryAnswer)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unavailable(f"{self.url}{place} does not answer as a schema registry does: {error}") from None

    def _body_of(self, answer: BaseHTTPResponse) -> bytes:
        data, end = bytearray(), time.monotonic() + self._timeout_s
        while len(data) <= _MAX_ANSWER_BYTES and (part := answer.read1(_READ_BYTES)):
            data += part
            if time.monotonic() > end:
                raise Unavailable(f"schema registry {self.url} has not answered completely in {self._timeout_s:g} s")
        return bytes(data)

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
    if not _is_address(parts) or parts.username is not None:
        raise InvalidArgument(
            "the URL of the schema registry must be like http://127.0.0.1:8081, and without a user: give basic_auth"
        )
    if parts.query or parts.fragment:
        raise InvalidArgument(
            f"the URL of the schema registry must not have a query or fragment: remove what follows {parts.path!r}"
        )


def _is_address(parts: SplitResult) -> bool:
    try:
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or too large
        return False


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


def _proxy_of(url: str) -> str:
    parts = urlsplit(url)
    return "" if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme, "")


def _proxy_user(proxy: str) -> str:
    parts = urlsplit(proxy)
    if not _is_address(parts):
        raise InvalidArgument(
            "the proxy of the schema registry must be like http://127.0.0.1:3128: change the argument proxy, or "
            "HTTPS_PROXY and HTTP_PROXY"
        )
    return "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"


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
