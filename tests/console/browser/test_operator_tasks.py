"""Tasks of operators from start to end, in a real browser: each begins at the first page, and follows what is there."""

from __future__ import annotations

import pytest

from minimq import Admin, LocalCluster, Message
from support.browser import Browser
from support.replicas import wait_for_master
from support.shop import FAILING, LAGGING, WANTED_KEY, Shop
from support.waiting import wait_until

pytestmark = pytest.mark.system


def test_why_a_group_lags(browser: Browser) -> None:
    assert f"Group {LAGGING} has no members" in browser.wait_for(f"roup {LAGGING}").replace("group", "Group")
    browser.follow("Groups")
    browser.wait_for(LAGGING)
    assert browser.texts("tbody th")[0] == LAGGING  # by lag, the largest first
    browser.follow(LAGGING)
    page = browser.wait_for("The group has no members: nobody reads what waits.")
    assert "120 messages" in page
    assert page.count("nobody") > 8

    browser.follow("Groups")
    browser.wait_for("billing")
    browser.follow("billing")
    page = browser.wait_for("Held by")
    assert "Problems" not in page
    assert len(browser.find("[aria-label=Members] tbody tr")) == 2


def test_a_message_is_found_by_its_key(browser: Browser) -> None:
    browser.follow("Topics")
    browser.wait_for("orders")
    browser.follow("orders")
    browser.wait_for("Newest messages")
    browser.fill("Key", WANTED_KEY)
    browser.push("Show")
    [row] = wait_until(lambda: len(found := browser.texts("tbody[data-rows] tr")) == 1 and found)
    assert WANTED_KEY in row
    assert f"key={WANTED_KEY}" in browser.address
    browser.click("tbody[data-rows] a")
    page = browser.wait_for("Message broker-")
    assert '"order": 1042,' in page
    browser.follow("What groups have done with it")
    page = browser.wait_for(LAGGING)
    assert "waiting" in page


def test_a_dead_letter_is_understood_and_resent(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.follow("Dead letters")
    browser.wait_for(FAILING)
    browser.follow(FAILING)
    page = browser.wait_for("the amount '12,00' is no number")
    assert "the amount '-' is no number" in page
    browser.click("tbody tr:first-child [data-action=resend-letters]")
    browser.push("Show what will happen")
    browser.wait_for("What will happen")
    browser.click("#do")
    browser.wait_for("Done.")
    browser.follow("Go on")
    browser.wait_for("Open ones")
    assert len(browser.find("tbody tr")) == 2
    with Admin(shop_cluster.nameserver) as admin:
        assert len(list(admin.dead_letters(FAILING))) == 2
        assert len(admin.find_messages("payments", key="p-2").messages) == 2


def test_a_topic_grows(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.follow("Topics")
    browser.wait_for("payments")
    browser.follow("payments")
    browser.wait_for("2 queues, read-write")
    browser.follow("Resize")
    browser.wait_for("Show what will happen")
    browser.fill("Queues", "5")
    browser.push("Show what will happen")
    browser.wait_for("What will happen")
    browser.click("#do")
    browser.wait_for("has 5 queues on each broker")
    browser.follow("Go on")
    browser.wait_for("5 queues, read-write")
    with Admin(shop_cluster.nameserver) as admin:
        assert [each.write_queues for each in admin.describe_topic("payments").settings] == [5, 5]


def test_a_topic_is_created_and_a_message_sent(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.follow("Topics")
    browser.follow("Create a topic")
    browser.wait_for("Show what will happen")
    browser.fill("Name", "complaints")
    browser.push("Show what will happen")
    browser.wait_for("Creates the topic complaints")
    browser.click("#do")
    browser.wait_for("Done.")
    browser.follow("Go on")
    browser.wait_for("No messages.")
    browser.follow("Send a message")
    browser.wait_for("Show what will happen")
    browser.fill("Body", '{"complaint": "cold coffee"}')
    browser.push("Show what will happen")
    browser.wait_for("What will happen")
    browser.click("#do")
    browser.wait_for("Done.")
    with Admin(shop_cluster.nameserver) as admin:
        assert admin.describe_topic("complaints").messages == 1


def test_a_group_goes_on_at_the_end(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.follow("Groups")
    browser.wait_for(LAGGING)
    browser.follow(LAGGING)
    browser.wait_for("The group has no members")
    browser.follow("Reset offsets")
    browser.wait_for("Show what will happen")
    browser.choose("Go on at", "the end")
    browser.push("Show what will happen")
    browser.wait_for("What will happen")
    browser.confirm(LAGGING)
    browser.wait_for("Done.")
    with Admin(shop_cluster.nameserver) as admin:
        assert admin.describe_group(LAGGING).lag == 0


def test_new_messages_are_watched_and_stopped(browser: Browser, shop: Shop, console_address: str) -> None:
    browser.open(f"{console_address}/topics/orders")
    browser.follow("Watch new messages")
    browser.wait_for("the last 500 stay")

    def sent(text: str) -> bool:
        shop.producer.send(Message("orders", text.encode()))  # again and again, as a tail begins at the end
        return text in browser.text("tbody")

    wait_until(lambda: sent("as it comes"))
    browser.push("Pause updates")
    shop.producer.send(Message("orders", b"while nobody looks"))
    browser.push("Go on")
    wait_until(lambda: sent("once more"))
    assert "while nobody looks" not in browser.text("tbody")
