"""Screenshots of all pages of the console, in a real browser: wide and narrow, light and dark.

make screenshots ARGS="[FOLDER] [--traffic SECONDS] [--only WORD] [--docs]"

It starts a cluster with a shop, which sells for a while, and a secured cluster. FOLDER is build/screenshots by default.
With --docs it only writes the few screenshots of the documents, to docs/images.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Self
from urllib.parse import quote

from PIL import Image

from minimq import Admin, Cluster, Credentials, LocalCluster, Message, Producer
from minimq.local.access_file import AccessFile
from minimq_cli.console import serving_console
from minimq_console.app import make_app
from minimq_console.console_options import ConsoleOptions
from minimq_console.sampler import Sampler
from minimq_console.server import ConsoleServer
from minimq_console.visitors import Observer, Visitors
from support.browser import NARROW, WIDE, Browser, open_browser
from support.secure_scraping import trust_of
from support.shop import FAILING, LAGGING, WANTED_KEY, Shop, delivery, frame, open_shop, order

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "images"
#: Pixels of a screenshot in the documents.
_DOCS_HEIGHT = 860
#: Factor of the sampler's clock: two minutes of traffic fill the charts of an hour.
_SPEED = 30
_HOSTILE = '<script>document.title = "gone"</script> "><img src=x onerror=alert(1)> \u202etxt.exe\u202c {{ 7 * 7 }}'


@contextmanager
def console_of(nameserver: str) -> Iterator[str]:
    """Serve a console with a fast clock; yields its address."""
    observer = Observer(nameserver, "", interval_s=0.5)
    with Admin(observer.cluster) as admin:
        observer.sampler = Sampler(admin, 0.5, lambda: time.monotonic() * _SPEED)
        options = ConsoleOptions(allow_changes=True)
        app, shared = make_app(Visitors(observer), [nameserver], options)
        try:
            with ConsoleServer(app, shared, options) as served:
                observer.start()
                yield served.address
        finally:
            observer.close()


class Traffic:
    """Sells in a shop until stopped, in a thread. A context manager."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._ends = Event()
        self._thread = Thread(target=self._run, name="traffic")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and wait for the thread. Idempotent."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        number, began = 2_000, time.monotonic()
        while not self._ends.wait(0.1):
            passed = time.monotonic() - began
            count = round(6 + 4 * math.sin(passed / 9) + 2 * math.sin(passed / 2.3))
            self._shop.producer.send_many([order(number + more, self._shop.chance) for more in range(count)])
            self._shop.producer.send_many([frame(self._shop.chance), delivery(number)])
            number += count
            for member in self._shop.members:
                member.poll(0, max_messages=4 if passed % 40 < 20 else 8)
                member.commit()


@dataclass
class Camera:
    """Takes the screenshots of one console."""

    browser: Browser
    address: str
    folder: Path
    only: str

    def take(self, name: str, path: str | None, shows: str = "", *, then: str = "") -> None:
        """Take all screenshots of a page.

        Args:
            name: name of the files.
            path: path of the page; None stays on the current page.
            shows: a text to wait for.
            then: a button to click first.
        """
        if self.only not in name:
            return
        if path is not None:
            self.browser.open(self.address + path)
        if then:
            self.browser.push(then)
        self.browser.wait_for(shows)
        for width in (WIDE, NARROW):
            self.browser.resize(width)
            for scheme in ("light", "dark"):
                self.browser.prefer(scheme)
                self.browser.picture(self.folder / f"{name}-{width}-{scheme}.png")
        self.browser.reset()

    def take_for_docs(self, name: str, path: str, shows: str) -> None:
        """Take one screenshot of the upper part of a page, with few colours to keep the file small."""
        self.browser.open(self.address + path)
        self.browser.wait_for(shows)
        file = self.folder / f"console-{name}.png"
        self.browser.picture(file)
        with Image.open(file) as whole:
            upper = whole.convert("RGB").crop((0, 0, WIDE, min(whole.height, _DOCS_HEIGHT)))
        upper.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def take_all(camera: Camera, messages: dict[str, str]) -> None:
    camera.take("cluster", "/", "broker-a")
    camera.take("topics", "/topics", "orders")
    camera.take("topic", "/topics/orders", "Newest messages")
    camera.take("topic-by-key", "/topics/orders?key=o-1042", "o-1042")
    camera.take("topic-by-key-none", "/topics/orders?key=o-9", "No messages")
    camera.take("topic-binary", "/topics/sensor-frames", "Newest messages")
    camera.take("tail", "/topics/orders/tail", "broker-")
    for kind, path in messages.items():
        camera.take(f"message-{kind}", path, "Body")
    camera.take("message-traced", messages["json"] + "?trace=1", "billing")
    camera.take("groups", "/groups", LAGGING)
    camera.take("group", "/groups/billing", "Members")
    camera.take("group-lagging", f"/groups/{LAGGING}", "nobody reads")
    camera.take("group-work-queue", "/groups/couriers", "Queues")
    camera.take("dead-letters", "/dead-letters", FAILING)
    camera.take("letters", f"/dead-letters/{FAILING}", "is no number")
    camera.take("delayed", "/delayed", "reminders")
    camera.take("waiting", "/delayed/reminders", "Due")
    camera.take("transactions", "/transactions", "checkout")
    camera.take("not-found", "/topics/nothing", "nothing")
    take_actions(camera)


def take_actions(camera: Camera) -> None:
    """Take the screenshots of forms, of their plans, and of a result."""
    camera.take("action-create", "/create-topic", "Show what will happen")
    camera.take("action-produce", "/topics/orders/produce", "Show what will happen")
    camera.take("action-reset", f"/groups/{LAGGING}/reset", "Show what will happen")
    camera.take("action-reset-plan", f"/groups/{LAGGING}/reset?to=latest&topic=orders&step=check", "What will happen")
    camera.take("action-resize", "/topics/payments/resize", "Show what will happen")
    if camera.only in "action-done":
        camera.browser.open(f"{camera.address}/topics/payments/resize?queues=3&step=check")
        camera.browser.push("Resize")
        camera.take("action-done", None, "Done.")


def take_faults(camera: Camera, cluster: LocalCluster) -> None:
    """Take the screenshots of a hanging broker, a dead one, and a dead cluster."""
    both = cluster.brokers[2:]  # the replicas of broker-b
    for broker in both:
        broker.pause()
    camera.take("fault-topic", "/topics/orders", "incomplete")
    for broker in both:
        broker.resume()
        broker.kill()
    camera.take("fault-broker", "/", "offline since")
    for nameserver in cluster.nameservers:
        nameserver.kill()
    camera.take("fault-cluster", "/", "cannot be read")
    camera.take("fault-page", "/topics", "does not answer")


def take_secured(camera: Camera) -> None:
    """Take the screenshots of a secured cluster: sign-in and users."""
    with LocalCluster(brokers=1, secure=True) as cluster, Admin(credentials=cluster.credentials) as admin:
        admin.create_topic("orders", queues=1)
        secrets = cluster.data_dir / "secrets"
        AccessFile(secrets).add("till", ["allow write topic orders"])
        assert cluster.credentials is not None
        bearer = trust_of(Credentials.from_text(cluster.credentials.read_text())).bearer
        assert bearer is not None
        given = {"credentials": cluster.credentials, "secrets": str(secrets)}
        with serving_console(cluster.nameserver, "127.0.0.1", 0, **given) as served:  # type: ignore[arg-type]
            camera = replace(camera, address=served.address)
            camera.take("sign-in", "/users", "credentials file")
            camera.browser.open(f"{served.address}/users")
            camera.browser.fill("Key", "mq_wrong")
            camera.take("sign-in-wrong", None, "No user of this cluster", then="Sign in")
            camera.browser.fill("Key", bearer.text)
            camera.browser.push("Sign in")
            camera.browser.wait_for("till")
            camera.take("users", "/users", "admin")


def take_docs(camera: Camera) -> None:
    camera.take_for_docs("cluster", "/", "broker-b")
    camera.take_for_docs("topic", "/topics/orders", "Newest messages")
    camera.take_for_docs("group", "/groups/billing", "Held by")
    camera.take_for_docs("dead-letters", f"/dead-letters/{FAILING}", "is no number")
    camera.take_for_docs("action", f"/groups/{LAGGING}/reset?to=latest&topic=orders&step=check", "What will happen")


def places(nameserver: str) -> dict[str, str]:
    """Send messages of different kinds, and return the paths of their pages."""
    bodies = {"hostile": _HOSTILE.encode(), "binary": bytes(range(256)) * 4, "large": b"0123456789abcdef" * (1 << 18)}
    with Cluster(nameserver) as cluster, Producer(cluster) as producer, Admin(cluster) as admin:
        admin.create_topic("odd_bodies.v1", queues=1)
        sent = {
            kind: producer.send(Message("odd_bodies.v1", body, tag="<b>", keys=['"><i>'], properties={"<u>": "</dl>"}))
            for kind, body in bodies.items()
        }
        [found] = admin.find_messages("orders", key=WANTED_KEY).messages
        paths = {kind: (receipt.queue, receipt.queue_offset) for kind, receipt in sent.items()}
        paths = {"json": (found.queue, found.queue_offset), **paths}
    return {
        kind: f"/topics/{quote(queue.topic, safe='')}/messages/{queue.broker_name}/{queue.queue_id}/{offset}"
        for kind, (queue, offset) in paths.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--docs", action="store_true", help="take those of docs/images alone")
    parser.add_argument("--traffic", type=float, default=100.0, help="seconds of selling before the first picture")
    parser.add_argument("--only", default="", help="take the pictures with this in their name")
    arguments = parser.parse_args()
    folder = arguments.folder or (DOCS if arguments.docs else ROOT / "build" / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        cluster = opened.enter_context(LocalCluster(brokers=2, slaves=1))
        shop = opened.enter_context(open_shop(cluster.nameserver))
        messages = places(cluster.nameserver)
        address = opened.enter_context(console_of(cluster.nameserver))
        traffic = opened.enter_context(Traffic(shop))
        browser = opened.enter_context(open_browser())
        time.sleep(arguments.traffic)
        camera = Camera(browser, address, folder, arguments.only)
        if arguments.docs:
            take_docs(camera)
            return
        take_all(camera, messages)
        take_secured(camera)
        traffic.stop()
        take_faults(camera, cluster)


if __name__ == "__main__":
    main()
