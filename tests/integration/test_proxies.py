"""A broker and a name server behind nginx: with the configuration of docs/proxies.md, and with defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minimq import Admin, Message, Producer, PullConsumer, errors
from minimq.connection.retry_schedule import MAX_PROXY_ATTEMPTS
from minimq.local.server_process import ServerProcess
from support.nginx import LACKING, NGINX, grpc_proxies
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(NGINX is None, reason=LACKING)

PAGE = Path(__file__).parents[2] / "docs" / "proxies.md"


@contextmanager
def behind_proxies(folder: Path, directives: str) -> Iterator[tuple[str, ServerProcess]]:
    """Run a name server and a broker behind nginx; yields the address of the proxied name server, and the broker."""
    nameserver = ServerProcess(
        "nameserver", "nameserver", folder, flags=lambda address, _: [f"--listen={address}"], settled=lambda: None
    )
    flags: list[str] = []
    broker = ServerProcess("broker", "broker-a", folder, flags=lambda *_: flags, settled=lambda: None)
    with grpc_proxies(folder, [nameserver.address, broker.address], directives) as (known, advertised):
        flags += ["--name=broker-a", f"--listen={broker.address}", f"--advertise={advertised}"]
        flags += [f"--data-dir={broker.data_dir}", f"--nameserver={nameserver.address}"]
        try:
            nameserver.start()
            broker.start()
            with Admin(known) as admin:
                wait_until(admin.cluster)
                admin.create_topic("t", queues=1)
            yield known, broker
        finally:
            broker.stop()
            nameserver.stop()


def test_the_configuration_of_the_page_carries_large_and_many_messages(tmp_path: Path) -> None:
    [block] = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    servers, directives = block.split("\n\nclient_max_body_size")
    assert (
        re.findall(r"listen \S+ (\w+);\s+location / { (grpc_pass grpc)://\S+; }", servers)
        == [("http2", "grpc_pass grpc")] * 2
    )
    with (
        behind_proxies(tmp_path, f"client_max_body_size{directives}") as (nameserver, _),
        Producer(nameserver) as producer,
        PullConsumer(nameserver, group="g") as consumer,
    ):
        consumer.subscribe("t")
        producer.send(Message("t", bytes(4 << 20)))
        producer.send_many(Message("t", bytes(1000)) for _ in range(5000))
        assert producer.statistics().retries == 0
        received = 0
        while received < 5001:
            received += len(consumer.poll(60.0))


def test_an_error_of_a_proxy_names_its_status_and_the_remedy(tmp_path: Path) -> None:
    with behind_proxies(tmp_path, "") as (nameserver, broker), Producer(nameserver, send_timeout_s=60) as producer:
        for _ in range(20):  # more than the limit of a stream, each of them less
            producer.send(Message("t", bytes(100_000)))
        with pytest.raises(errors.SendFailed, match=r"HTTP status 413.*batch_bytes") as caught:
            producer.send(Message("t", bytes(1 << 20)))
        assert (len(caught.value.attempts), caught.value.may_be_stored) == (MAX_PROXY_ATTEMPTS, 1)
        broker.stop()
        with Producer(nameserver, send_timeout_s=0.5) as hasty:
            hasty._core.client.routes.learn(producer._core.client.routes.route("t"))
            with pytest.raises(errors.SendFailed, match=r"HTTP status (502: it does not reach the server|was lost)"):
                hasty.send(Message("t", b"x"))
