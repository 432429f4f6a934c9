"""A real browser: Chromium without a window and its driver, both of the distribution."""

from __future__ import annotations

import shutil
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from support.waiting import wait_until

T = TypeVar("T")

#: The programs, by the names that distributions give them.
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
LACKING = "there is no Chromium with its driver: make setup installs both as root (apt-get install chromium-driver)"

WIDE, NARROW = 1280, 390
#: Seconds until an element is there and can be clicked.
_TIMEOUT_S = 60.0
_HEIGHTS = {WIDE: 900, NARROW: 844}
#: It talks to this machine alone, keeps nothing, and runs as root, where its sandbox cannot be.
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_TEXTS = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"


class Browser:
    """One window of Chromium. Used by one thread.

    Args:
        driver: of Selenium.
    """

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver
        self.width = WIDE

    def resize(self, width: int, height: int | None = None) -> None:
        """Give the page a width, also one that a window cannot have."""
        self.width = width
        shape = {"width": width, "height": height or _HEIGHTS[width], "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", **shape)

    def prefer(self, scheme: str) -> None:
        """Prefer "light" or "dark", as a user sets it in the system."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", features=features)

    def reset(self) -> None:
        """Be as wide and as light as a browser that has just begun."""
        self.resize(WIDE)
        self.prefer("light")

    def open(self, address: str) -> None:
        """Load a page."""
        self._driver.get(address)

    @property
    def address(self) -> str:
        """The address that is shown."""
        return self._driver.current_url

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page, as a test and not as the page: its policy does not hold."""
        return self._driver.execute_script(script, *arguments)

    def find(self, selector: str) -> list[WebElement]:
        """Return the elements that a selector of CSS matches."""
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """Return what a user reads in an element; empty if it is not there."""
        return str(self.run("return (document.querySelector(arguments[0]) || {}).innerText || ''", selector))

    def texts(self, selector: str) -> list[str]:
        """Return what a user reads in each element that a selector matches."""
        return [str(each) for each in self.run(_TEXTS, selector)]

    def wait_for(self, text: str, selector: str = "main", timeout: float = 20.0) -> str:
        """Return what an element says as soon as it says this."""
        try:
            wait_until(lambda: text in self.text(selector), timeout)
        except AssertionError:
            raise AssertionError(f"{self.address} has no {text!r}, but: {self.text('body')}") from None
        return self.text(selector)

    def wait_until_true(self, script: str) -> None:
        """Return as soon as a script returns something true."""
        wait_until(lambda: self.run(script), what=script)

    def follow(self, link: str) -> None:
        """Click a link by its text."""
        self._again(lambda: self._driver.find_element(By.LINK_TEXT, link).click())

    def click(self, selector: str) -> None:
        """Click the element that a selector matches."""
        self._again(lambda: self._driver.find_element(By.CSS_SELECTOR, selector).click())

    def push(self, button: str) -> None:
        """Click a button by its text."""
        self._again(lambda: self._driver.find_element(By.XPATH, f"//button[normalize-space()='{button}']").click())

    def fill(self, label: str, value: str) -> None:
        """Type into the field with a label."""
        field = self._again(lambda: self._driver.find_element(By.ID, self._field(label)))
        field.clear()
        field.send_keys(value)

    def choose(self, label: str, option: str) -> None:
        """Choose an option, by its text, of the list with a label."""
        self._again(lambda: Select(self._driver.find_element(By.ID, self._field(label))).select_by_visible_text(option))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, in whatever has the keyboard."""
        actions = ActionChains(self._driver)
        for key in keys:
            actions.send_keys(key)
        actions.perform()

    @property
    def focused(self) -> str:
        """The text of what has the keyboard, or the name of a field."""
        return str(self.run("const it = document.activeElement; return (it.innerText || it.name || it.tagName).trim()"))

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page, also of what is below the window."""
        height = self.run("return Math.ceil(document.documentElement.getBoundingClientRect().height)")
        self.resize(self.width, max(height, _HEIGHTS[self.width]))
        shot = self._command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(b64decode(shot["data"]))
        self.resize(self.width)

    def complaints(self) -> list[str]:
        """Return what the browser's log got since the last call: errors of scripts, and what the policy rejected."""
        return [
            f"{each['level']}: {each['message']}"
            for each in self._driver.execute("getLog", {"type": "browser"})["value"]
        ]

    def _field(self, label: str) -> str:
        """Return the id of the field with a label."""
        find = "[...document.querySelectorAll('label')].find((each) => each.innerText.trim().startsWith(arguments[0]))"
        return str(self.run(f"return {find}?.htmlFor || ''", label))

    def _again(self, action: Callable[[], T]) -> T:
        """Return what an action returns; the live part of the page may be replaced under it."""
        found: list[T] = []
        began = time.monotonic()
        while not found:
            try:
                found.append(action())
            except WebDriverException as error:
                if time.monotonic() - began > _TIMEOUT_S:
                    raise AssertionError(f"{error.msg} at {self.address}: {self.text()}") from error
                time.sleep(0.05)
        return found[0]

    def _command(self, name: str, **parameters: object) -> Any:
        return self._driver.execute_cdp_cmd(name, parameters)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a Chromium with a profile of its own, and end it after the block."""
    assert CHROMIUM, LACKING
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="minimq-browser-") as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            browser = Browser(driver)
            browser.reset()
            yield browser
        finally:
            driver.quit()
