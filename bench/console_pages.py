"""The speed of the console: response times of its pages with a large cluster, and its CPU while idle.

    .venv/bin/python bench/console_pages.py [--brokers 10] [--topics 1000] [--groups 200] [--rounds 20]

It starts brokers on this machine, creates topics with two queues on each of them, sends a message to every tenth topic,
and commits offsets of each group in one topic. Then it requests each page repeatedly from a `minimq console`, one
request after the other. Pages of a topic or a group show a different one in each round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from processes import cpu_seconds

from minimq import Admin, LocalCluster, Message, Producer

#: Pages; {topic} and {group} are placeholders.
PAGES = (
    "/",
    "/topics",
    "/topics?order=rate",
    "/topics?search=topic-00",
    "/topics/{topic}",
    "/groups",
    "/groups/{group}",
    "/dead-letters",
    "/delayed",
    "/transactions",
)


def populate(nameserver: str, topics: Sequence[str], groups: Sequence[str]) -> None:
    """Create topics and groups, and send some messages."""
    with Admin(nameserver, timeout_s=60) as admin, ThreadPoolExecutor(8) as threads:

        def create(topic: str) -> None:
            admin.create_topic(topic, queues=2)

        def begin(numbered: tuple[int, str]) -> None:
            number, group = numbered
            admin.reset_offset(group, topics[number % len(topics)], "earliest")

        list(threads.map(create, topics))
        with Producer(nameserver) as producer:
            producer.send_many([Message(topic, b'{"order": 17}', keys=["o-17"]) for topic in topics[::10]])
        list(threads.map(begin, enumerate(groups)))


@contextmanager
def console_of(nameserver: str) -> Iterator[tuple[str, int]]:
    """Run a console during the block; yields its address and its process id."""
    command = [sys.executable, "-m", "minimq", "-s", nameserver, "console", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().split()[-1], running.pid
        finally:
            running.terminate()


def ask(address: str, path: str) -> tuple[float, bool]:
    """Return the response time of a page in seconds, and whether the page is complete."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = HTTPConnection(parts.hostname, parts.port, timeout=60)
    began = time.monotonic()
    connection.request("GET", path, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    body = answer.read().decode()
    took = time.monotonic() - began
    connection.close()
    return took, answer.status == 200 and "This page is incomplete" not in body


def measure(
    address: str, topics: Sequence[str], groups: Sequence[str], rounds: int
) -> dict[str, list[tuple[float, bool]]]:
    """Return the results of `ask` by page."""
    found: dict[str, list[tuple[float, bool]]] = {page: [] for page in PAGES}
    for number in range(rounds):
        for page in PAGES:
            path = page.format(topic=topics[number * 10 % len(topics)], group=groups[number % len(groups)])
            found[page].append(ask(address, path))
    return found


def share(values: Sequence[float], part: float) -> float:
    """Return the quantile of `values` at `part`."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", type=int, default=10)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds in which nobody looks, before the pages")
    arguments = parser.parse_args()
    topics = [f"topic-{number:04d}" for number in range(arguments.topics)]
    groups = [f"group-{number:03d}" for number in range(arguments.groups)]
    with LocalCluster(brokers=arguments.brokers) as cluster:
        began = time.monotonic()
        populate(cluster.nameserver, topics, groups)
        print(f"made in {time.monotonic() - began:.0f} s", flush=True)
        with console_of(cluster.nameserver) as (address, pid):
            ask(address, "/")
            before, began = cpu_seconds(pid), time.monotonic()
            time.sleep(arguments.idle)
            idle = (cpu_seconds(pid) - before) / (time.monotonic() - began)
            found = measure(address, topics, groups, arguments.rounds)
            peak = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line)
    print(f"{'page':28}{'median ms':>10}{'95 % ms':>10}{'most ms':>10}{'not whole':>11}")
    found["all"] = [value for values in found.values() for value in values]
    for page, asked in found.items():
        values, lacking = [took for took, _ in asked], sum(not whole for _, whole in asked)
        median, most = statistics.median(values) * 1000, max(values) * 1000
        print(f"{page:28}{median:10.0f}{share(values, 0.95) * 1000:10.0f}{most:10.0f}{lacking:11}")
    print(f"while nobody looks: {idle:.0%} of a core; memory at most {int(peak.split()[1]) / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
