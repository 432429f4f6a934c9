"""`minimq request`: sends a request, and prints the reply."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from minimq.admin.message_rows import body_fields
from minimq.admin.operation import Param
from minimq.admin.values import TopicName, properties_of
from minimq_cli.base import show_json
from minimq_cli.commands import declared, output_param

_TIMEOUT = Param(low=0.001, high=86_400, metavar="SECONDS", help="Timeout of the reply.")
_KEYS = Param(flag="--key", metavar="KEY", help="Key of the request.")
_PROPERTIES = Param(flag="--property", metavar="NAME=VALUE", help="Property of the request.")
_REPLY_TOPIC = Param(metavar="TOPIC", help="Topic of the reply, such as %REPLY%alice; default: one that all share.")
_OUTPUT = output_param("raw", "json", help="Print the body of the reply as it is, or body and properties as JSON.")


@declared("request", "Send a request, and print the reply.")
def request(
    nameserver: str,
    topic: TopicName,
    body: str,
    *,
    timeout: Annotated[float, _TIMEOUT] = 3.0,
    tag: Annotated[str | None, Param(metavar="TAG", help="Tag of the request.")] = None,
    keys: Annotated[Sequence[str], _KEYS] = (),
    properties: Annotated[Sequence[str], _PROPERTIES] = (),
    reply_topic: Annotated[str | None, _REPLY_TOPIC] = None,
    output: Annotated[str, _OUTPUT] = "raw",
) -> None:
    """Send BODY, or stdin if that is -, as a request to a topic, and print the body of the reply.

    The exit status is 1 if no reply comes in time, or if the service replies with an error, which is printed.

    \b
    Examples:
      minimq request delays '{"carrier": "UA", "month": 2, "day": 8}'
      minimq request thumbnails - --timeout 30 < picture.png > thumbnail.png
    """
    from minimq.producer import Producer
    from minimq_common.model import Message

    data = sys.stdin.buffer.read() if body == "-" else body.encode()
    with Producer(nameserver, reply_topic=reply_topic) as producer:
        message = Message(topic, data, tag, keys, properties_of("--property", properties))
        reply = producer.request(message, timeout=timeout)
    if output == "json":
        show_json({**body_fields(reply.body), "properties": dict(reply.properties)})
        return
    out = sys.stdout.buffer
    out.write(reply.body)
    if out.isatty():
        out.write(b"\n")
    out.flush()
