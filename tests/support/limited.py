"""A broker of this process with small limits, and its name server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from minimq import Admin
from minimq_broker.assembly import BrokerOptions
from minimq_broker.broker import Broker
from minimq_broker.calls.limits import Limits
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer
from support.loop_thread import LoopThread
from support.waiting import wait_until


@dataclass(frozen=True)
class Limited:
    nameserver: str
    #: Address of "broker-a".
    broker: str
    data_dir: Path


@contextmanager
def limited(data_dir: Path, **limits: float) -> Iterator[Limited]:
    """Serve a broker with these `Limits`."""
    nameserver = NameServer(NameServerOptions(listen="127.0.0.1:0", start_grace_s=0))
    with closing(LoopThread()) as loop, loop.serving(nameserver):
        options = BrokerOptions(
            listen="127.0.0.1:0",
            nameservers=(nameserver.address,),
            data_dir=data_dir,
            disk_delete_early=1,
            disk_reject=1,
        )
        own = Limits(options.max_body_bytes, options.max_batch_bytes, **limits)  # type: ignore[arg-type]
        with loop.serving(Broker(options, own)) as broker:
            with Admin(nameserver.address) as admin:
                wait_until(admin.broker_status, what="the broker is registered")
            yield Limited(nameserver.address, broker.address, data_dir)
