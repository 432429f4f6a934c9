"""Serializers whose bodies are JSON: plain values, msgspec types, and pydantic models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

import msgspec

from minimq.schemas.framing import SchemaMark
from minimq.schemas.registry import Schema, SchemaRegistry, check_installed, resolved
from minimq.schemas.serializer import KEPT_SCHEMAS, Serializer, SerializerOptions
from minimq_common.errors import InvalidArgument, MalformedBody

if TYPE_CHECKING:
    import pydantic
    from jsonschema.protocols import Validator

#: A value that JSON can represent.
Plain: TypeAlias = Any
V = TypeVar("V")
M = TypeVar("M", bound="pydantic.BaseModel")


class JsonSerializer(Serializer[Any]):
    """JSON of plain values: dicts, lists, texts, numbers, and other types that msgspec encodes, such as datetimes.

    Args:
        schema: a JSON Schema, as text or as a mapping, that values and bodies have to fit. None: any value fits, and
            with a registry, bodies have to fit the schema that they were written with.
        registry: the schema registry; None for bodies without a mark.
        options: `subject`, `register` and `framing`, as for `Serializer`.

    Raises:
        InvalidArgument: the schema is no JSON Schema.
    """

    def __init__(
        self,
        schema: str | Mapping[str, Any] | None = None,
        registry: SchemaRegistry | None = None,
        **options: Unpack[SerializerOptions],
    ) -> None:
        super().__init__(registry, **options)
        self._text = schema if isinstance(schema, str) or schema is None else json.dumps(schema)
        self._validator_of = lru_cache(KEPT_SCHEMAS)(self._new_validator)
        self._own = None if self._text is None else self._validator_of(Schema(self._text, "JSON"))

    def _schema(self) -> Schema:
        if self._text is None:
            raise InvalidArgument("the serializer has no schema, so that it can only read: give it one to send")
        return Schema(self._text, "JSON")

    def _encode(self, value: Plain) -> bytes:
        try:
            payload = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"the value cannot be written as JSON: {error}") from None
        if self._own is None:
            return payload
        from referencing.exceptions import Unresolvable  # a part of an extra

        try:
            mistake = _mistake(self._own, json.loads(payload))
        except (Unresolvable, RecursionError) as error:  # the schema refers to a missing schema, or to itself
            raise InvalidArgument(f"the value cannot be checked by its JSON Schema: {error}"[:300]) from None
        if mistake:
            raise InvalidArgument(f"the value does not fit its schema: {mistake}")
        return payload

    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> Plain:
        value = msgspec.json.decode(payload)
        validator = self._own
        if validator is None and mark is not None:
            schema = self.written(mark).schema  # first: an error of the registry does not concern the body
            try:
                validator = self._validator_of(schema)
            except InvalidArgument as error:
                raise MalformedBody(f"the body cannot be read: {error}") from None
        if validator is not None and (mistake := _mistake(validator, value)):
            raise MalformedBody(f"the body does not fit its schema: {mistake}")
        return value

    def _new_validator(self, schema: Schema) -> Validator:
        check_installed("jsonschema")
        import jsonschema  # a part of an extra, and slow to import
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT7

        if schema.kind != "JSON":
            raise MalformedBody(f"the body is written with a schema of kind {schema.kind}, not JSON")
        try:
            read = json.loads(schema.text)
            kind = jsonschema.validators.validator_for(read, default=jsonschema.Draft7Validator)
            kind.check_schema(read)
        except (ValueError, RecursionError, jsonschema.SchemaError) as error:
            raise InvalidArgument(f"this is no JSON Schema: {str(error).splitlines()[0]}") from None
        others = resolved(self.registry, schema.references) if self.registry is not None else {}
        known: Registry[Any] = Registry().with_resources(
            (name, Resource.from_contents(json.loads(other.text), DRAFT7)) for name, other in others.items()
        )
        made: Validator = kind(read, registry=known)
        return made


class MsgspecSerializer(Serializer[V]):
    """JSON of a type that msgspec knows: a `Struct`, a dataclass, a TypedDict and others.

    Bodies are checked against the type, even if they were written with another schema: unknown fields are skipped, and
    missing fields get their defaults.

    Args:
        kind: the type.
        registry: the schema registry, which gets the JSON Schema of the type; None for bodies without a mark.
        options: `subject`, `register` and `framing`, as for `Serializer`.

    Raises:
        InvalidArgument: msgspec does not support the type.
    """

    def __init__(
        self, kind: type[V], registry: SchemaRegistry | None = None, **options: Unpack[SerializerOptions]
    ) -> None:
        super().__init__(registry, **options)
        self._kind = kind
        given: object = kind  # may be a union, although type checkers see a type
        self._name = given.__name__ if isinstance(given, type) else str(given)
        try:
            self._decoder = msgspec.json.Decoder(kind)
        except TypeError as error:
            raise InvalidArgument(f"{kind!r} is no type that msgspec can read: {error}") from None

    def _schema(self) -> Schema:
        return Schema(json.dumps(msgspec.json.schema(self._kind)), "JSON")

    def _encode(self, value: V) -> bytes:
        try:
            payload = msgspec.json.encode(value)
            self._decoder.decode(payload)  # because msgspec does not check the types of attributes when it encodes
        except (TypeError, ValueError, RecursionError) as error:  # the text ends with the path of the field
            raise InvalidArgument(f"the value does not fit {self._name}: {error}") from None
        return payload

    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> V:
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise MalformedBody(f"the body does not fit {self._name}: {error}") from None


class PydanticSerializer(Serializer[M]):
    """JSON of a pydantic model; the model checks bodies.

    Args:
        model: the class.
        registry: the schema registry, which gets the JSON Schema of the model; None for bodies without a mark.
        options: `subject`, `register` and `framing`, as for `Serializer`.

    Raises:
        InvalidArgument: `model` is not a pydantic model.
    """

    def __init__(
        self, model: type[M], registry: SchemaRegistry | None = None, **options: Unpack[SerializerOptions]
    ) -> None:
        super().__init__(registry, **options)
        given: object = model
        if not (isinstance(given, type) and hasattr(given, "model_validate_json")):
            raise InvalidArgument(f"{model!r} is no model of pydantic: give the class")
        self._model = model

    def _schema(self) -> Schema:
        return Schema(json.dumps(self._model.model_json_schema()), "JSON")

    def _encode(self, value: M) -> bytes:
        import pydantic  # a part of an extra

        if not isinstance(value, self._model):
            raise InvalidArgument(f"the value is {type(value).__name__}: give {self._model.__name__}")
        try:
            payload = value.model_dump_json(by_alias=True, warnings="none").encode()  # names as in the schema
            self._model.model_validate_json(payload)  # by default, models do not check assignments to attributes
        except pydantic.ValidationError as error:
            raise InvalidArgument(f"the value does not fit {self._model.__name__}: {_pydantic_text(error)}") from None
        except ValueError as error:
            raise InvalidArgument(f"the value cannot be written as JSON: {error}") from None
        return payload

    def _decode(self, payload: bytes, mark: SchemaMark | None, indexes: Sequence[int]) -> M:
        import pydantic  # a part of an extra

        try:
            return self._model.model_validate_json(payload)
        except pydantic.ValidationError as error:
            raise MalformedBody(f"the body does not fit {self._model.__name__}: {_pydantic_text(error)}") from None


def _mistake(validator: Validator, value: object) -> str | None:
    from jsonschema.exceptions import best_match  # a part of an extra

    error = best_match(validator.iter_errors(value))
    return None if error is None else f"{error.message[:300]} - at `{error.json_path}`"


def _pydantic_text(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"{first['msg']} - at `${path}`"
