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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.cli.main import main
from simulator.errors import ConfigError
from simulator.profiles.gpu import load_gpu
from simulator.run import simulate
from simulator.scenario.spec import load_scenario
from simulator.ui import model
from simulator.ui.cheapest import cheapest
from simulator.ui.model import REQUESTS, evaluate, shared
from simulator.ui.server import SLIDERS
from simulator.ui.settings import Settings, settings_from

SCENARIOS = Path(__file__).parents[2] / "scenarios"
WAIT_S = 180


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


def test_the_curve_is_in_per_cent_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 99th percentile of the same requests at the same rate, in milliseconds as the limits are."""
    drawn: list[Any] = []
    monkeypatch.setattr(model, "chart", lambda series, *_args, **_more: drawn.append(series) or "")
    monkeypatch.setattr(model, "CURVE", (1.0,))
    settings = Settings(ttft_ms=700, tpot_ms=40)
    evaluate(settings)
    shown = {one.name: one.points[0][1] for series in drawn for one in series}
    found = simulate(settings.scenario(settings.rate / settings.replicas, model.CURVE_REQUESTS)).summary
    assert shown["p99 TTFT"] == pytest.approx(found["ttft_s"]["p99"] * 1e3 / 700 * 100)
    assert shown["p99 TPOT"] == pytest.approx(found["tpot_s"]["p99"] * 1e3 / 40 * 100)


def test_sliders_cover_settings_and_a_plan_sets_them() -> None:
    start, prices = settings_from(SCENARIOS / "plan_chat.yaml")
    assert prices["h100-sxm"] == 2.69 and start.rate == pytest.approx(40, rel=0.05)
    assert (start.ttft_ms, start.tpot_ms, start.price) == (500, 50, 2.69)
    assert {name for name, *_ in SLIDERS} <= set(vars(start))


def test_a_scenario_starts_the_page_with_all_its_settings(tmp_path: Path) -> None:
    """What the page has no control for stays what the file says, distributions too; only their mean is set."""
    path = tmp_path / "mine.yaml"
    path.write_text("""
name: mine
workload:
  arrivals: {kind: gamma, rate: 6, cv: 2.5, requests: 400}
  prompt: {kind: lognormal, mean: 600, cv: 0.4, max: 3000}
  output: {kind: exponential, mean: 90, max: 700}
model: qwen2.5-7b
hardware: {gpu: l40s, kv_dtype: fp8, gpu_memory_utilization: 0.8}
engine: {name: vllm-0.24, cuda_graphs: false}
kv: {block_size: 32}
policy: {name: chunked, max_num_seqs: 48, max_num_batched_tokens: 1024}
cluster: {replicas: 3}
max_model_len: 4096
slo: {ttft_s: 0.7, tpot_s: 0.08}
""")
    start, prices = settings_from(path)
    assert prices == {} and start.note == ""
    assert (start.gpu, start.model, start.replicas, start.max_num_seqs, start.max_num_batched_tokens) == (
        "l40s", "qwen2.5-7b", 3, 48, 1024)  # fmt: skip
    assert (start.ttft_ms, start.tpot_ms) == (700, 80) and start.rate == pytest.approx(6, rel=0.2)
    made = start.scenario(2.0, 500)
    assert made.engine.cuda_graphs is False and made.kv.block_size == 32 and made.max_model_len == 4096
    assert (made.hardware.kv_dtype, made.hardware.gpu_memory_utilization) == ("fp8", 0.8)
    assert made.workload["arrivals"] == {"kind": "gamma", "cv": 2.5, "rate": 2.0, "requests": 500}
    assert made.workload["prompt"] == {"kind": "lognormal", "cv": 0.4, "max": 3000, "mean": float(start.prompt)}


def test_a_system_prompt_is_found_in_the_cache_unless_that_is_off(tmp_path: Path) -> None:
    """Prompts of 1,150 tokens on average behind the same 800: without the 800 of the first, 800 / 1,950 = 41 % are
    found, in blocks of 16. A file's own system prompts stay as many and as popular, and its switch is where it says."""
    def found(settings: Settings) -> float:
        result = simulate(settings.scenario(10, 1500))
        return float(result.summary["kv"]["prefix_cache"]["hit_rate"] or 0)

    start = Settings(prefix=800)
    assert found(start) == pytest.approx(0.41, abs=0.015) and found(replace(start, prefix_caching=False)) == 0
    with_file = settings_from(SCENARIOS / "prefix_system_prompts.yaml")[0]
    assert 1500 < with_file.prefix < 2000 and with_file.prompt == pytest.approx(150, rel=0.2)
    made = with_file.plain(3, 100)
    assert made["workload"]["prefix"] == {"groups": 40, "skew": 1.0, "length": with_file.prefix}
    assert with_file.prefix_caching and made["kv"] == {"num_gpu_blocks": 3000}
    path = tmp_path / "off.yaml"
    path.write_text("workload: {arrivals: {kind: poisson, rate: 1, requests: 50}, prompt: 100, output: 10}\n"
                    "kv: {prefix_caching: false}\n")
    off = settings_from(path)[0]
    assert not off.prefix_caching and off.kv() == {"prefix_caching": False}
    assert replace(off, prefix_caching=True).kv() == {"prefix_caching": True}


def test_what_the_page_does_not_show_is_refused_or_said() -> None:
    for name, key in (("fleet_autoscale", "cluster.autoscale"), ("fleet_length_split", "cluster.pools"),
                      ("agents", "load.kind")):  # fmt: skip
        with pytest.raises(ConfigError, match=key):
            settings_from(SCENARIOS / f"{name}.yaml")
    assert "are drawn with the mean" in settings_from(SCENARIOS / "plan_classes.yaml")[0].note


def test_the_shared_scenario_gives_the_numbers_of_the_page(tmp_path: Path) -> None:
    settings = Settings(rate=30, replicas=3, max_num_batched_tokens=1024)
    path = tmp_path / "scenario.yaml"
    path.write_text(shared(settings))
    result = simulate(load_scenario(path))
    view = evaluate(settings, pictures=False)
    assert len(result.trace) == REQUESTS and "One of 3 replicas" in path.read_text()
    assert result.summary["ttft_s"]["p99"] == pytest.approx(view.ttft_s, rel=1e-9)
    assert result.summary["tpot_s"]["p99"] == pytest.approx(view.tpot_s, rel=1e-9)


def test_the_cheapest_fleet_meets_the_limits_when_it_is_shown() -> None:
    settings = Settings(rate=20, replicas=1)
    lines, chosen = cheapest(settings, {})
    assert lines[0].startswith("Buy ") and chosen is not None
    assert f"{chosen.replicas} " in lines[0] and chosen.gpu in lines[0]
    assert evaluate(chosen, pictures=False).meets
    lines, chosen = cheapest(Settings(model="llama-3.1-70b"), {})
    assert chosen is None and lines[0].startswith("No fleet")


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
        assert server.stdout is not None
        assert server.stdout.readline().decode() == f"the page is at http://127.0.0.1:{port} (Ctrl-C ends it)\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:  # in the middle of a simulation
            server.kill()
            server.wait()


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


def test_a_port_that_is_taken_is_refused(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = page.rsplit(":", 1)[1]
    assert main(["ui", "--no-open", "--port", port]) == 2
    assert f"--port {port}: Address already in use; accepted: a port that is free" in capsys.readouterr().err


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


def _find(browser: Any, test_id: str) -> Any:
    return browser.find_element("css selector", f'[data-testid="{test_id}"]')


def _type(browser: Any, name: str, text: str) -> None:
    """Put a number into the field beside a slider."""
    from selenium.webdriver.common.keys import Keys

    entry = _find(browser, f"{name}-number")
    entry.send_keys(Keys.CONTROL, "a")
    entry.send_keys(text or Keys.DELETE)


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
    _type(browser, "replicas", "3")
    usd = 3 * load_gpu("h100-sxm").price_usd_h
    _until(lambda: float(_text(browser, "cost").split()[0]) == pytest.approx(usd, abs=0.006))
    _type(browser, "rate", "")  # half typed: nothing changes
    _type(browser, "rate", "250")  # beyond the slider's 200
    _until(lambda: _text(browser, "rate-label").endswith(": 250"))
    _type(browser, "prefix", "800")
    _until(lambda: _text(browser, "prompt-tokens-from-the-cache") not in ("–", "0.0 %"))
    _find(browser, "prefix_caching").click()
    _until(lambda: _text(browser, "prompt-tokens-from-the-cache") == "–")
    browser.find_element("css selector", '[data-testid="policy"]').click()
    _until(lambda: [o for o in browser.find_elements("css selector", ".q-item") if o.text == "static"])
    next(o for o in browser.find_elements("css selector", ".q-item") if o.text == "static").click()
    _until(lambda: _text(browser, "p99-TPOT") == "whole batch")
    _find(browser, "share").click()
    _until(lambda: _find(browser, "download"))
    text = browser.find_element("css selector", "textarea").get_attribute("value")
    assert "name: static" in text and "One of " in text
    _find(browser, "close").click()
    _until(lambda: not browser.find_elements("css selector", "textarea"))
    browser.get(page)  # the first settings again: continuous batching
    _until(lambda: "limit" in browser.find_element("id", "verdict").text.lower())
    _find(browser, "find").click()
    _until(lambda: "Buy " in _text(browser, "answer"))
    bought = _text(browser, "answer")
    _find(browser, "take").click()
    _until(lambda: _text(browser, "replicas-label").split(": ")[1] + " " in bought.split(":")[1])
    _until(lambda: browser.find_element("id", "verdict").text == "Meets both limits")
    folder = os.environ.get("SERVECAST_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / "ui.png"))
