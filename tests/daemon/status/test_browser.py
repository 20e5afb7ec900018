"""
The status page of a real daemon with 1,000 Services in a real Chromium, by mouse and by keys.

Browser, driver and daemon are in one network namespace with nothing but loopback: what would be asked of the outside
fails, and a failed request is a line of the console.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.big_cluster import cluster
from kproxy_ipt.testing.daemon_process import DaemonProcess, lab_arguments, wait_until
from kproxy_ipt.testing.namespaces import temporary_namespace
from kproxy_ipt.testing.object_folder import ObjectFolder
from kproxy_ipt.testing.objects import endpoint_slice, service, slice_endpoint
from kproxy_ipt.testing.promptness import quickest, slowness

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not shutil.which("chromedriver"), reason="no Chromium with its driver; `make test` installs it"),
]

ROOT = "http://127.0.0.1:10258"
SERVICES = 1000
FIRST_PAINT_S = 1.0
THEMES = ("light", "dark")
SHOP = service("cart", namespace="shop", cluster_ip="10.111.0.1")
CART = ("10.250.0.1", slice_endpoint("10.250.0.2", ready=False))

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--window-size=1280,900",
)

_CONTRASTS = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const found = channels(getComputedStyle(one).backgroundColor);
    if (found.length < 4 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const poor = new Set();
for (const element of document.body.querySelectorAll("*")) {
  const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!hasText || !element.checkVisibility()) continue;
  const [one, other] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < 4.5) poor.add(`${element.tagName} ${element.className}: ${ratio.toFixed(2)}`);
}
return [...poor];
"""
"""Which texts have a contrast below the 4.5 of WCAG AA."""


class Browser:
    """Chromium at the status page."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, path: str) -> None:
        """Load a page as if its address was typed."""
        self.driver.get(ROOT + path)

    @property
    def heading(self) -> str:
        """The headline of the page."""
        return self._text_of("h1")

    @property
    def text(self) -> str:
        """What can be read."""
        return self._text_of("main")

    def _text_of(self, tag: str) -> str:
        """Of the first element of that kind, "" while there is none: a page may be on its way."""
        try:
            return next((found.text for found in self.driver.find_elements(By.TAG_NAME, tag)), "")
        except StaleElementReferenceException:
            return ""

    def console(self) -> list[object]:
        """What was said to the console since the last time."""
        said: list[object] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return said

    def link(self, text: str) -> WebElement:
        """The link called *text*."""
        return self.driver.find_element(By.LINK_TEXT, text)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, text: str) -> None:
        """Press Tab until a link or button of that text has the focus."""
        for _ in range(40):
            self.press(Keys.TAB)
            if self.driver.switch_to.active_element.text == text:
                return
        raise AssertionError(f"Tab never comes to {text}")

    def theme(self, name: str) -> None:
        """Prefer `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def first_paint_s(self) -> float:
        """From the click to the first text of the page that is open."""
        script = "return performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)"
        wait_until(lambda: self.driver.execute_script(script), "first paint")
        (found,) = self.driver.execute_script(script)
        return float(found) / 1000

    def _painted(self) -> float:
        """Seconds until the page showed text; if they were many, it is loaded once more."""
        # A trace reads the kernel by a program, which waits for processors that others hold; other pages run none.
        took_s = self.first_paint_s() / (slowness() if "/trace?" in self.driver.current_url else 1.0)
        if took_s >= FIRST_PAINT_S:
            self.driver.refresh()
        return took_s

    def assert_calm(self) -> None:
        """The page came soon, said nothing to the console, and asked nobody else for anything."""
        assert quickest(self._painted, FIRST_PAINT_S) < FIRST_PAINT_S
        asked = self.driver.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
        assert [name for name in asked if not name.startswith(f"{ROOT}/")] == []
        assert self.console() == []


def _chromium(profile: Path) -> Chrome:
    options = ChromeOptions()
    for switch in (*_SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options=options, service=Service(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ObjectFolder:
    """The objects: 1,000 Services, and one that tests may change."""
    made = ObjectFolder(tmp_path_factory.mktemp("objects"), SHOP, endpoint_slice(SHOP, CART))
    made.write("all.json", cluster(SERVICES))
    return made


@pytest.fixture(scope="module")
def started(folder: ObjectFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A daemon in step, and a browser beside it."""
    with temporary_namespace("status") as netns, inside(netns):
        subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
        arguments = (*lab_arguments(folder.path, "nft"), "--status-bind-address", "127.0.0.1")
        with DaemonProcess(netns, *arguments) as daemon:
            daemon.wait_in_step()
            driver = _chromium(tmp_path_factory.mktemp("profile"))
            try:
                yield Browser(driver)
            finally:
                driver.quit()


@pytest.fixture
def browser(started: Browser) -> Browser:
    """The browser with an empty console, at no page, in the light theme."""
    started.driver.get("about:blank")
    started.console()
    started.theme("light")
    return started


def test_a_service_is_followed_by_clicks(browser: Browser) -> None:
    """List, service, graph, trace, and back to the list."""
    browser.open("/")
    browser.assert_calm()
    assert f"{SERVICES + 1:,} Services, page 1 of 6" in browser.text

    browser.link("next →").click()
    browser.link("ns-20/svc-320").click()
    browser.assert_calm()
    assert browser.heading == "ns-20/svc-320 served"
    assert browser.text.count(" in ready 20 % ") == 5

    browser.link("Graph").click()
    picture = browser.driver.find_element(By.CSS_SELECTOR, ".picture img")
    wait_until(lambda: picture.get_property("naturalWidth"), "the picture")
    browser.assert_calm()

    browser.link("a trace").click()
    browser.assert_calm()
    assert "KUBE-SVC-" in browser.text
    assert browser.text.count("to endpoint") == 5

    browser.link("Services").click()
    browser.assert_calm()


def test_a_service_is_followed_by_keys(browser: Browser) -> None:
    """The same without a mouse: search, rows, links, the trace form."""
    browser.open("/")
    browser.press("/", "svc-77", Keys.ENTER)
    wait_until(lambda: "11 Services" in browser.text, "what was found")
    browser.press("j", "j", "k", Keys.ENTER)
    wait_until(lambda: browser.heading == "ns-20/svc-770 served", "the service")

    browser.tab_to("Graph")
    browser.press(Keys.ENTER)
    wait_until(lambda: "Graph" in browser.heading, "the graph")
    browser.assert_calm()

    browser.tab_to("Trace")
    browser.press(Keys.ENTER)
    wait_until(lambda: browser.heading == "Trace", "the form")
    browser.press("/", "10.250.9.9", Keys.TAB, "svc/ns-20/svc-770", Keys.ENTER)
    wait_until(lambda: "Rule by rule" in browser.text, "the answer")
    browser.assert_calm()
    assert browser.text.count("to endpoint") == 5


def test_the_first_tab_skips_to_the_content(browser: Browser) -> None:
    """Who cannot see the page does not hear its head again and again."""
    browser.open("/")
    browser.press(Keys.TAB)

    assert browser.driver.switch_to.active_element.text == "Skip to the content"


def test_a_change_shows_without_loading_and_the_focus_stays(browser: Browser, folder: ObjectFolder) -> None:
    """An endpoint that becomes ready is seen within seconds; a pause holds everything."""
    browser.open("/?q=cart")
    assert "some out 1 / 2" in browser.text
    browser.press("j")
    focused = browser.driver.switch_to.active_element
    browser.driver.execute_script("window.notLoadedAgain = true")

    folder.put(endpoint_slice(SHOP, ("10.250.0.1", "10.250.0.2")))
    wait_until(lambda: "served 2 / 2" in browser.text, "the change")
    assert browser.driver.execute_script("return window.notLoadedAgain")
    assert browser.driver.switch_to.active_element == focused
    browser.press("l")
    assert browser.driver.find_element(By.ID, "live").get_attribute("aria-pressed") == "false"
    browser.assert_calm()
    folder.put(endpoint_slice(SHOP, CART))


def test_a_service_that_is_deleted_is_said_to_be_gone(browser: Browser, folder: ObjectFolder) -> None:
    """Its page stays as it was last, and asks no more."""
    brief = service("brief", namespace="shop", cluster_ip="10.111.0.2")
    folder.put(brief)

    def is_written() -> bool:
        browser.open("/service/shop/brief")
        return browser.heading == "shop/brief no endpoint"

    wait_until(is_written, "the Service")
    folder.remove(brief)
    wait_until(lambda: browser.driver.find_element(By.ID, "live").text.endswith("Gone"), "the end")

    assert browser.heading == "shop/brief no endpoint"


def test_everything_works_without_script(browser: Browser) -> None:
    """List, search and pages are the server's work."""
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open("/")
        browser.driver.find_element(By.ID, "q").send_keys("10.96.0.77", Keys.ENTER)
        wait_until(lambda: "1 Service" in browser.text.splitlines(), "what was found")
        browser.link("ns-26/svc-76").click()
        assert browser.heading == "ns-26/svc-76 served"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


PAGES = ("/", "/service/shop/cart", "/graph/ns-1/svc-1", "/trace?to=svc/shop/cart&node=1", "/syncs", "/drift")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("path", PAGES)
def test_every_text_has_contrast(browser: Browser, path: str, theme: str) -> None:
    """WCAG AA, in both themes."""
    browser.theme(theme)
    browser.open(path)

    assert browser.driver.execute_script(_CONTRASTS) == []
    browser.assert_calm()


@pytest.mark.parametrize("path", PAGES)
def test_narrow_windows_need_no_scrolling_sideways(browser: Browser, path: str) -> None:
    """Down to 400 pixels; what is wide scrolls by itself."""
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.open(path)
        widths = browser.driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    assert widths[0] <= widths[1], json.dumps(widths)
