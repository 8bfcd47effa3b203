"""The local page: what it shows, that it listens to this computer only, and clicking through it in a browser."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.ui.model import Settings, evaluate, settings_from
from simulator.ui.server import SLIDERS

SCENARIOS = Path(__file__).parents[2] / "scenarios"
WAIT_S = 60


def test_more_replicas_cost_more_and_wait_less() -> None:
    one, four = (evaluate(Settings(rate=30, replicas=n), pictures=False) for n in (1, 4))
    assert one.overloaded and four.meets
    assert four.usd_per_hour == pytest.approx(4 * one.usd_per_hour)
    assert four.ttft_s < one.ttft_s


def test_a_model_that_one_gpu_does_not_hold_runs_on_several_which_all_cost() -> None:
    """70 billion parameters of 2 bytes on 80 GB: not on one GPU, on four, at four times the price."""
    one, four = (evaluate(Settings(rate=1, replicas=1, model="llama-3.1-70b", tensor_parallel=n), pictures=False)
                 for n in (1, 4))  # fmt: skip
    small = evaluate(Settings(rate=1, replicas=1), pictures=False)
    assert one.error and not four.error
    assert four.usd_per_hour == pytest.approx(4 * small.usd_per_hour)
    assert settings_from(SCENARIOS / "plan_classes.yaml")[0].model == "qwen2.5-14b"


def test_pictures_are_there_and_a_setting_that_cannot_run_is_a_message() -> None:
    view = evaluate(Settings())
    assert view.curve.startswith("<svg") and view.slots.startswith("<svg")
    assert "needs at least" in evaluate(Settings(model="llama-3.1-70b")).error
    assert "rate must be" in evaluate(Settings(rate=0)).error


def test_sliders_cover_settings_and_a_plan_sets_them() -> None:
    start, spec = settings_from(SCENARIOS / "plan_chat.yaml")
    assert spec is not None and start.rate == pytest.approx(40, rel=0.05)
    assert (start.ttft_ms, start.tpot_ms, start.price) == (500, 50, 2.69)
    assert {name for name, *_ in SLIDERS} <= set(vars(start))


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    pytest.importorskip("nicegui", reason="the extra `ui` is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(SCENARIOS.parent)
    hidden = ("PYTEST", "NICEGUI")  # NiceGUI takes another path when it believes it is under test
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)} | {"PYTHONPATH": root}
    server = subprocess.Popen(
        [sys.executable, "-m", "simulator.cli.main", "ui", "--port", str(port), "--no-open"],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(port: int, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise AssertionError(server.stdout.read().decode() if server.stdout else "")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the page did not come up")


def test_only_this_computer_is_served(page: str) -> None:
    port = int(page.rsplit(":", 1)[1])
    assert urllib.request.urlopen(page, timeout=10).status == 200
    foreign = urllib.request.Request(page, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(foreign, timeout=10)
    assert refused.value.code == 400
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        if not str(address).startswith("127."):
            with pytest.raises(OSError):
                socket.create_connection((str(address), port), 1)


def answer_to(page: str, path: str, **headers: str) -> int:
    """Status of a GET as a browser sends it."""
    asked = http.client.HTTPConnection("127.0.0.1", int(page.rsplit(":", 1)[1]), timeout=10)
    try:
        asked.request("GET", path, headers=headers)
        return asked.getresponse().status
    finally:
        asked.close()


def test_pages_of_other_sites_get_no_answer_and_no_socket(page: str) -> None:
    """A WebSocket to 127.0.0.1 may be opened by any page: its Origin tells (RFC 6455, 10.2); 101 would be accepted."""
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "x3JJHMbDL1EzLkh9GBhXDw=="}  # fmt: skip
    socket_path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    polling = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    port = page.rsplit(":", 1)[1]
    for origin in ("https://evil.example", "http://127.0.0.1:1", "null", f"http://evil.example:{port}"):
        assert answer_to(page, "/", Origin=origin) == 403
        assert answer_to(page, polling, Origin=origin) == 403
        assert answer_to(page, socket_path, Origin=origin, **upgrade) == 403
    for origin in (page, f"http://localhost:{port}"):
        assert answer_to(page, "/", Origin=origin) == 200
        assert answer_to(page, socket_path, Origin=origin, **upgrade) == 101


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium with chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400"):
        options.add_argument(flag)
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


def _text(browser: Any, test_id: str) -> str:
    found: str = browser.find_element("css selector", f'[data-testid="{test_id}"]').text
    return found


def _until(condition: Any) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if condition():
                return
        except Exception:
            pass
        time.sleep(0.1)
    raise AssertionError("the page did not change as expected")


def test_clicking_through_the_page(page: str, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser.get(page)
    _until(lambda: "limit" in browser.find_element("id", "verdict").text.lower())
    cost = _text(browser, "cost")
    assert browser.find_elements("css selector", '[data-testid="curve"] svg')
    assert browser.find_elements("css selector", '[data-testid="slots"] svg')
    slider = browser.find_element("css selector", '[data-testid="replicas"]')
    ActionChains(browser).click(slider).perform()  # its middle: half of 64 replicas
    _until(lambda: 28 <= int(_text(browser, "replicas-label").split(": ")[1]) <= 36)
    _until(lambda: _text(browser, "cost") != cost)
    browser.find_element("css selector", '[data-testid="policy"]').click()
    _until(lambda: [o for o in browser.find_elements("css selector", ".q-item") if o.text == "static"])
    next(o for o in browser.find_elements("css selector", ".q-item") if o.text == "static").click()
    _until(lambda: _text(browser, "p99-TPOT") == "whole batch")
    folder = os.environ.get("SERVECAST_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / "ui.png"))
