"""Classes of Protobuf messages as protoc generates them: a file with nested messages that imports another file."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_STRING, _INT32, _MESSAGE = 9, 5, 11


def _field(name: str, number: int, kind: int, of: str = "") -> descriptor_pb2.FieldDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto(name=name, number=number)
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    field.type = kind  # type: ignore[assignment]
    if of:
        field.type_name = of
    return field


def _message(name: str, *fields: descriptor_pb2.FieldDescriptorProto) -> descriptor_pb2.DescriptorProto:
    return descriptor_pb2.DescriptorProto(name=name, field=fields)


def _classes() -> tuple[Any, Any, Any, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="shop/customer.proto",
            package="shop",
            syntax="proto3",
            message_type=[_message("Customer", _field("name", 1, _STRING))],
        )
    )
    order = _message(
        "Order",
        _field("id", 1, _STRING),
        _field("total", 2, _INT32),
        _field("customer", 3, _MESSAGE, ".shop.Customer"),
        _field("at", 4, _MESSAGE, ".google.protobuf.Timestamp"),
    )
    order.nested_type.extend([_message("Discount"), _message("Line", _field("price", 1, _INT32))])
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="shop/order.proto",
            package="shop",
            syntax="proto3",
            dependency=["shop/customer.proto", "google/protobuf/timestamp.proto"],
            message_type=[order, _message("Refund", _field("id", 1, _STRING))],
        )
    )
    name = _field("name", 1, _STRING)
    name.label = descriptor_pb2.FieldDescriptorProto.LABEL_REQUIRED
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="shop/guest.proto", package="shop", syntax="proto2", message_type=[_message("Guest", name)]
        )
    )
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))
        for name in ("Order", "Order.Line", "Refund", "Guest")
    )  # type: ignore[return-value]


#: The first message of a file, one within it, and the second of the file; and one with a field that is required.
ORDER, LINE, REFUND, GUEST = _classes()
