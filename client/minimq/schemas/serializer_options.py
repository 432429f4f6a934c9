"""The options that all serializers have."""

from collections.abc import Callable
from typing import Literal, TypedDict


class SerializerOptions(TypedDict, total=False):
    """The options of a serializer besides its schema and its registry; `Serializer` tells what they mean."""

    subject: Callable[[str], str] | None
    register: bool
    framing: Literal["prefix", "header"]
