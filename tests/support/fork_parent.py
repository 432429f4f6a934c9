"""A program that forks children in a certain state of gRPC: KIND NAMESERVER TOPIC. It tells in JSON what they did.

KIND is what the parent does before: "never" makes a client, "closed" it again, "open" keeps it, "grandparent" forks
another parent, "supported" has a gRPC channel of its own. All children make a client and send. Only with "busy",
where a thread of the parent sends continuously, they do nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from minimq import Message, Producer

import grpc  # isort: skip - after minimq, which prepares it for forks

#: A child that hangs is ended so late, in seconds.
_HANGS_S = 20


def in_child(work: Callable[[], str]) -> str:
    """Return what a child has returned or raised."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        signal.alarm(_HANGS_S)
        try:
            said = work()
        except Exception as error:  # noqa: BLE001 - it is told
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said if status == 0 else f"ended with {status}"


def use_grpc(channel: grpc.Channel) -> None:
    """Use a channel that is not of minimq."""
    grpc.channel_ready_future(channel).result()


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Have a thread that does this again and again, and has done it once."""
    is_done, over = threading.Event(), threading.Event()

    def repeat() -> None:
        while not over.wait(0.0001):
            work()
            is_done.set()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    is_done.wait()
    yield
    over.set()
    thread.join()


def main(kind: str, nameserver: str, topic: str) -> None:
    """Prepare, fork children, and tell what became of them."""

    def send() -> str:
        with Producer(nameserver) as producer:
            return producer.send(Message(topic, b"child")).status.name

    def five() -> list[str]:
        return [in_child(send) for _ in range(5)]

    with ExitStack() as opened:
        if kind == "closed":
            send()
        elif kind == "supported":
            use_grpc(opened.enter_context(grpc.insecure_channel(nameserver)))
        elif kind != "never":
            producer = opened.enter_context(Producer(nameserver))
            producer.send(Message(topic, b"parent"))
        if kind == "grandparent":
            outcomes = json.loads(in_child(lambda: json.dumps(five())))
        elif kind == "busy":
            with repeating(lambda: producer.send(Message(topic, b"parent"))):
                outcomes = [in_child(lambda: "0") for _ in range(100)]
        else:
            outcomes = five()
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
