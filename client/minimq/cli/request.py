"""`minimq request`: sends a request, and prints the reply."""

from __future__ import annotations

import base64
import sys

import click

from minimq.cli.base import option, show_json
from minimq.cli.completion import complete_topics
from minimq.cli.line_format import properties_of


@click.command(short_help="Send a request, and print the reply.")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("body")
@option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Time in which the reply has to come.",
)
@option("--tag", metavar="TAG", help="Tag of the request.")
@option(
    "--key",
    "keys",
    envvar="MINIMQ_REQUEST_KEY",
    multiple=True,
    metavar="KEY",
    help="Key of the request; may be given several times.",
)
@option(
    "--property",
    "properties",
    envvar="MINIMQ_REQUEST_PROPERTY",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of the request; may be given several times.",
)
@option(
    "--output",
    type=click.Choice(("body", "json")),
    default="body",
    show_default=True,
    help="Print the body of the reply as it is, or body and properties as JSON.",
)
@click.pass_obj
def request(
    nameserver: str,
    topic: str,
    body: str,
    *,
    timeout: float,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    output: str,
) -> None:
    """Send BODY, or stdin if that is -, as a request to a topic, and print the body of the reply.

    The exit status is 1 if no reply comes in time, or if the service replies with an error, which is printed.

    \b
    Examples:
      minimq request delays '{"carrier": "UA", "month": 2, "day": 8}'
      minimq request thumbnails - --timeout 30 < picture.png > thumbnail.png
    """
    from minimq.sending.producer import Producer
    from minimq_common.model import Message

    data = sys.stdin.buffer.read() if body == "-" else body.encode()
    with Producer(nameserver) as producer:
        message = Message(topic, data, tag, keys, properties_of(properties))
        reply = producer.request(message, timeout=timeout)
    if output == "json":
        try:
            shown = {"body": reply.body.decode()}
        except UnicodeDecodeError:
            shown = {"body_base64": base64.b64encode(reply.body).decode()}
        show_json({**shown, "properties": dict(reply.properties)})
        return
    out = sys.stdout.buffer
    out.write(reply.body)
    if out.isatty():
        out.write(b"\n")
    out.flush()
