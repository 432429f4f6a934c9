"""The look and feel of pages in a real browser: on a phone, by keyboard, and with content that wants to be more."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from selenium.webdriver.common.keys import Keys

from minimq import Admin, LocalCluster, Message, Producer
from support.browser import NARROW, WIDE, Browser
from support.shop import FAILING, LAGGING, LONG, LONG_TOPIC, Shop

pytestmark = pytest.mark.system

PATHS = (
    "/",
    "/topics",
    "/topics?search=nothing",
    "/topics/orders",
    f"/topics/{LONG_TOPIC}",
    "/topics/orders/tail",
    "/topics/orders/messages/broker-a/0/0",
    "/topics/orders/messages/broker-a/0/0?trace=1",
    "/groups",
    "/groups/billing",
    f"/groups/{LAGGING}",
    f"/groups/{LONG}",
    "/groups/couriers",
    "/dead-letters",
    f"/dead-letters/{FAILING}",
    "/delayed",
    "/delayed/reminders",
    "/transactions",
    "/create-topic",
    "/topics/orders/resize",
    f"/groups/{LAGGING}/reset",
)
#: Elements beyond the right edge, but for those that scroll by themselves.
_OUTSIDE = """
return [...document.body.querySelectorAll("*")]
  .filter((each) => !each.closest(".wide, pre, .skip") && each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 80))
"""
#: Whether one sees what has the keyboard: by an outline, within the window.
_IS_SEEN = """
const it = document.activeElement, box = it.getBoundingClientRect(), style = getComputedStyle(it);
return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
  && box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.left >= -1
"""
_REACHABLE = "a[href], button:not([hidden]), input:not([type=hidden]), select, textarea, [tabindex='0']"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_no_page_is_wider_than_the_window(browser: Browser, console_address: str, width: int) -> None:
    browser.resize(width)
    for path in PATHS:
        browser.open(console_address + path)
        assert browser.text("h1"), path
        assert browser.run("return document.documentElement.scrollWidth") <= width, path
        assert browser.run(_OUTSIDE) == [], path


def test_the_table_of_brokers_is_not_wider_than_a_window_of_a_laptop(browser: Browser, console_address: str) -> None:
    browser.open(console_address)
    long_texts = """
    const [broker, state, role, inSync, inRate, outRate, disk, permission, up, address] =
      document.querySelector("[aria-label=Brokers] tbody tr").cells;
    const whole = (text) => `<span class="whole">${text}</span>`;
    const write = (cell, ...texts) => { cell.innerHTML = texts.map(whole).join(" "); };
    broker.innerHTML = "minimq-broker-a <span class='quiet'>replica 0</span>";
    write(role, "master", "async", "term 12");
    inSync.innerHTML = "0, 1 <span class='bad'>without 2, 512.3 MB behind</span>";
    inRate.textContent = outRate.textContent = "1,234,567";
    write(disk, "123.4 GB", "85 % used", "512.3 GB free");
    up.textContent = "123d 14h";
    address.innerHTML = "minimq-broker-a-0.minimq-broker-a.production.svc:10911 <span>minimq 0.1.0</span>";
    const table = document.querySelector("[aria-label=Brokers]");
    return [table.scrollWidth, table.clientWidth];
    """
    needed, given = browser.run(long_texts)
    assert needed <= given


def test_a_page_is_used_by_keyboard_alone(browser: Browser, console_address: str) -> None:
    browser.open(f"{console_address}/groups")
    browser.press(Keys.TAB)
    assert browser.focused == "Skip to the content"
    assert browser.run(_IS_SEEN)
    browser.press(Keys.ENTER, Keys.TAB)
    assert browser.focused == "Pause updates"
    reached = 0
    while browser.focused != LAGGING:
        browser.press(Keys.TAB)
        assert browser.run(_IS_SEEN), browser.focused
        reached += 1
        assert reached < 40
    browser.press(Keys.ENTER)
    browser.wait_for("The group has no members")


def test_what_has_the_keyboard_keeps_it_while_the_page_changes(browser: Browser, shop: Shop) -> None:
    browser.wait_for("broker-a")
    browser.run("document.querySelector('main a[href=\"/topics\"]').focus(); window.first = document.activeElement")
    browser.wait_until_true("return window.first !== document.activeElement")
    assert "topics" in browser.focused


def test_each_thing_to_click_or_fill_in_has_a_name(browser: Browser, console_address: str) -> None:
    nameless = f"""
    return [...document.querySelectorAll("{_REACHABLE}")].filter((each) =>
      !(each.innerText || "").trim() && !each.labels?.length && !each.getAttribute("aria-label"))
      .map((each) => each.outerHTML.slice(0, 80))
    """
    for path in PATHS:
        browser.open(console_address + path)
        assert browser.run(nameless) == [], path


def test_dark_and_light_follow_the_system(browser: Browser) -> None:
    colours = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        colours.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]


# ---- Hostile content ------------------------------------------------------------------------------

ODD = "odd..-_.topic"
ATTACK = """<script>window.taken = 1</script>"><img src=x onerror="window.taken = 1"><style>*{display:none}</style>"""
TURNED = "\u202etxt.exe\u202c \u2067right\u2069 \u200b"

UNSEEN = set("\u202e\u202c\u2067\u2069\u200b")
#: What an attack would leave: a variable, or elements.
_TAKEN = "return window.taken || document.querySelectorAll('main script, main img, main style').length"


@pytest.fixture(scope="module")
def odd(shop_cluster: LocalCluster) -> Iterator[dict[str, str]]:
    """The paths of messages whose content wants to be more."""
    bodies = {
        "script": ATTACK.encode(),
        "turned": TURNED.encode(),
        "json": b'{"a": "</pre>' + ATTACK.replace('"', "'").encode() + b'"}',
        "binary": bytes(range(256)),
        "large": b"<b>" * (1 << 20),
    }
    with Admin(shop_cluster.nameserver) as admin, Producer(shop_cluster.nameserver) as producer:
        admin.create_topic(ODD, queues=1)
        paths = {}
        for kind, body in bodies.items():
            message = Message(
                ODD, body, tag=ATTACK[:200], keys=[ATTACK, TURNED], properties={ATTACK: ATTACK, "b": TURNED}
            )
            queue = (receipt := producer.send(message)).queue
            paths[kind] = (
                f"/topics/{quote(ODD, safe='')}/messages/{queue.broker_name}/{queue.queue_id}/{receipt.queue_offset}"
            )
        yield paths
        admin.delete_topic(ODD)


@pytest.mark.parametrize("kind", ["script", "turned", "json", "binary", "large"])
def test_no_message_acts_on_its_page(browser: Browser, console_address: str, odd: dict[str, str], kind: str) -> None:
    for show in ("auto", "text", "hex"):
        browser.open(f"{console_address}{odd[kind]}?show={show}")
        page = browser.wait_for("Message broker-")
        assert browser.run(_TAKEN) == 0
        assert not UNSEEN & set(page)
        assert "<script>" in page  # in a key


def test_no_name_and_no_search_acts_on_its_page(browser: Browser, console_address: str, odd: dict[str, str]) -> None:
    for path in (
        f"/topics/{quote(ODD, safe='')}",
        f"/topics?search={quote(ATTACK)}",
        f"/groups?search={quote(ATTACK)}",
    ):
        browser.open(console_address + path)
        browser.wait_for("odd" if "odd" in path else "None")
        assert browser.run(_TAKEN) == 0
    browser.open(f"{console_address}/topics?search=odd")
    browser.follow(ODD)
    browser.wait_for(f"Topic {ODD}")
    assert len(browser.find("tbody[data-rows] tr")) == 5
