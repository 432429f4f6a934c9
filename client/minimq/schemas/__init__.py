"""Serializers: convert values to message bodies and back, with JSON, msgspec, pydantic, Avro and Protobuf.

`JsonSerializer`, `MsgspecSerializer`, `PydanticSerializer`, `AvroSerializer`, `ProtobufSerializer`; a `SchemaRegistry`
with the schemas of the bodies. `pip install minimq[schemas]` installs the libraries that they need.

Each name is imported when it is first used, with only the libraries of its format.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "AvroSerializer",
    "JsonSerializer",
    "MsgspecSerializer",
    "ProtobufSerializer",
    "PydanticSerializer",
    "RegisteredSchema",
    "Schema",
    "SchemaMissing",
    "SchemaReference",
    "SchemaRegistry",
    "Serializer",
]

if TYPE_CHECKING:
    from minimq.schemas.avro_serializer import AvroSerializer
    from minimq.schemas.json_serializers import JsonSerializer, MsgspecSerializer, PydanticSerializer
    from minimq.schemas.protobuf_serializer import ProtobufSerializer
    from minimq.schemas.registry import RegisteredSchema, Schema, SchemaMissing, SchemaReference, SchemaRegistry
    from minimq.schemas.serializer import Serializer
else:
    _MODULES = {
        "AvroSerializer": "avro_serializer",
        "JsonSerializer": "json_serializers",
        "MsgspecSerializer": "json_serializers",
        "ProtobufSerializer": "protobuf_serializer",
        "PydanticSerializer": "json_serializers",
        "RegisteredSchema": "registry",
        "Schema": "registry",
        "SchemaMissing": "registry",
        "SchemaReference": "registry",
        "SchemaRegistry": "registry",
        "Serializer": "serializer",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"minimq.schemas.{_MODULES[name]}")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("minimq"):
                raise
            raise ModuleNotFoundError(
                f"minimq.schemas.{name} needs {error.name}: pip install 'minimq[schemas]'", name=error.name
            ) from None
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
