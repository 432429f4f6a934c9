"""Tasks of operators from start to end, in a real browser: each begins at the first page, and follows what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq import Admin, Credentials, LocalCluster, Message
from minimq_cli.console import serving_console
from support.browser import Browser
from support.secure_scraping import trust_of
from support.shop import FAILING, LAGGING, WANTED_KEY, Shop
from support.users import Users
from support.waiting import wait_until

pytestmark = pytest.mark.system


def act(browser: Browser, shows: str = "", typed: str = "") -> None:
    """Have an action that is filled in described, confirm it, and wait until it is done."""
    browser.push("Show what will happen")
    assert shows in browser.wait_for("What will happen")
    confirm(browser, typed)


def confirm(browser: Browser, typed: str = "") -> None:
    """Confirm an action that is described."""
    if typed:
        browser.fill("To confirm it", typed)
    browser.click("#do")
    browser.wait_for("Done.")


def test_why_a_group_lags(browser: Browser) -> None:
    browser.wait_for(f"roup {LAGGING}: no members")
    browser.follow("Groups")
    browser.wait_for(LAGGING)
    assert browser.texts("tbody th")[0] == LAGGING  # by lag, the largest first
    browser.follow(LAGGING)
    page = browser.wait_for("The group has no members: its unread messages wait.")
    assert "120 messages" in page
    assert page.count("nobody") == 8  # each queue is held by nobody

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
    wait_until(lambda: len(browser.texts("tbody[data-rows] tr")) == 1)
    [row] = browser.texts("tbody[data-rows] tr")
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
    place = next(n for n, row in enumerate(browser.texts("tbody tr"), 1) if "'12,00'" in row)
    browser.click(f"tbody tr:nth-child({place}) [data-action=resend-letters]")
    browser.wait_for("open dead letters for payments")
    confirm(browser)
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
    act(browser, "write queues of payments")
    browser.follow("Go on")
    browser.wait_for("5 queues, read-write")
    with Admin(shop_cluster.nameserver) as admin:
        assert [each.write_queues for each in admin.describe_topic("payments").settings] == [5, 5]


def test_a_topic_is_created_and_a_message_sent(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.follow("Topics")
    browser.follow("Create a topic")
    browser.wait_for("Show what will happen")
    browser.fill("Name", "complaints")
    act(browser, "complaints on broker-a")
    browser.follow("Go on")
    browser.wait_for("No messages.")
    browser.follow("Send a message")
    browser.wait_for("Show what will happen")
    browser.fill("Body", '{"complaint": "cold coffee"}')
    act(browser)
    with Admin(shop_cluster.nameserver) as admin:
        assert admin.describe_topic("complaints").messages == 1


def test_a_group_goes_on_at_the_end(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.follow("Groups")
    browser.wait_for(LAGGING)
    browser.follow(LAGGING)
    browser.wait_for("The group has no members")
    browser.follow("Reset offsets")
    browser.wait_for("Show what will happen")
    browser.fill("Go on at", "latest")
    act(browser, LAGGING, typed=LAGGING)
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


def test_who_signs_in_sees_what_the_user_may_see(browser: Browser, tmp_path: Path) -> None:
    with LocalCluster(brokers=1, data_dir=tmp_path, secure=True) as cluster:
        with Admin(credentials=cluster.credentials) as admin:
            admin.create_topic("orders", queues=1)
            admin.create_topic("payroll", queues=1)
        bearer = trust_of(Credentials.from_text(Users(cluster).add("alice", ["allow read topic orders"]))).bearer
        assert bearer is not None
        with serving_console(cluster.nameserver, "127.0.0.1", 0, credentials=cluster.credentials) as served:
            browser.open(f"{served.address}/topics")
            for key, shows in (("mq_wrong", "No user of this cluster has this key"), (bearer.text, "orders")):
                browser.fill("Key", key)
                browser.push("Sign in")
                browser.wait_for(shows)
            assert "payroll" not in browser.text("body")
            assert "key " in browser.text("header")
            browser.push("Sign out")
            browser.wait_for("credentials file")
    complaints = browser.complaints()
    assert all("status of 403" in each for each in complaints), complaints  # the wrong key


def test_a_slave_is_promoted(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.wait_for("broker-b")
    row = "tbody tr:nth-child(4)"
    assert "slave" in browser.text(row)
    browser.click(f"{row} [data-action=promote]")
    browser.wait_for("master of broker-b")
    confirm(browser, typed="broker-b")
    browser.follow("Go on")
    wait_until(lambda: "replica 1" in (master := browser.text("tbody tr:nth-child(3)")) and "master" in master)
    wait_until(lambda: "replica 0" in (slave := browser.text(row)) and "slave" in slave)
    assert [each.current_role for each in shop_cluster.brokers if each.broker_name == "broker-b"] == ["slave", "master"]


@pytest.mark.fault
def test_a_broker_dies_and_comes_back_without_reloading(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.wait_for("broker-a")
    browser.run("window.isTheSame = true")
    dying = shop_cluster.server("broker-a-1")
    dying.kill()
    wait_until(lambda: browser.text("tbody").count("running") == 3, what=browser.text())
    dying.start()
    wait_until(lambda: browser.text("tbody").count("running") == 4)
    assert browser.run("return window.isTheSame")


@pytest.mark.fault
def test_a_lost_cluster_is_said_and_comes_back(browser: Browser, shop_cluster: LocalCluster) -> None:
    browser.wait_for("broker-a")
    browser.run("window.isTheSame = true")
    [nameserver] = shop_cluster.nameservers
    nameserver.kill()
    browser.wait_for("he cluster cannot be read", ".missing")
    nameserver.start()
    wait_until(lambda: not browser.find(".missing"))
    browser.wait_for("broker-b")
    assert browser.run("return window.isTheSame")


@pytest.mark.fault
def test_a_console_that_ends_is_noticed(browser: Browser, shop_cluster: LocalCluster) -> None:
    with serving_console(shop_cluster.nameserver, "127.0.0.1", 0, interval_s=0.2) as served:
        browser.open(served.address)
        browser.wait_for("broker-a")
    browser.wait_for("The console does not answer: this page is out of date.", "#lost")
    assert "broker-a" in browser.text("tbody")
    browser.open("about:blank")
    assert all("net::ERR" in each for each in browser.complaints())  # it asks again and again
