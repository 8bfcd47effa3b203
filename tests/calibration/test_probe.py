"""A probe of a server with known factors, in this process; what a probe must never do."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calibration_servers import FLAGS, SERVER
from virtual_server import MODELS, FakeServer, run_virtually

from calibration.observed import RequestMeans
from calibration.probe import Part, Probe, Probed, checked_address, plan
from calibration.scales import fit_scales
from simulator.cli.main import main
from simulator.errors import CalibrationError, ConfigError


def probed(server: FakeServer, parts: list[Part], seconds: float = 120.0, longest: int = 8192) -> Probed:
    async def work() -> Probed:
        listening = await server.start()
        host, port = listening.sockets[0].getsockname()
        try:
            return await Probe(f"http://{host}:{port}", seconds, 128_000).run(parts, longest)
        finally:
            listening.close()

    done: Probed = run_virtually(work)
    return done


@pytest.mark.parametrize(("cpu", "gpu"), [(0.5, 1.15), (1.6, 0.9)])
def test_known_factors_come_back_within_three_percent(cpu: float, gpu: float) -> None:
    server = FakeServer(cpu, gpu)
    parts = plan(128, 8192, 100_000)
    done = probed(server, parts)
    assert list(dict.fromkeys(done.parts)) == [str(part) for part in parts]
    found = fit_scales([RequestMeans(SERVER.run(done.served), done.parts)])
    assert found.cpu.value == pytest.approx(cpu, rel=0.03) and found.gpu.value == pytest.approx(gpu, rel=0.03)
    assert found.cpu.low < cpu < found.cpu.high and found.gpu.low < gpu < found.gpu.high


def test_what_was_shown_is_what_is_sent() -> None:
    """Tokens, requests at a time and their sizes; random prompts, so that none is found in a cache."""
    server, parts = FakeServer(), plan(8, 2000, 100_000)
    probed(server, parts)
    sent = sum(len(request["prompt"]) + request["max_tokens"] for request in server.seen)
    assert sent == sum(part.tokens for part in parts) <= 100_000
    assert len({tuple(request["prompt"]) for request in server.seen}) == len(server.seen)
    assert all(min(r["prompt"]) >= 1000 and max(r["prompt"]) < 128_000 for r in server.seen)
    assert all(request["ignore_eos"] and request["stream"] for request in server.seen)


def test_the_plan_keeps_to_tokens_lengths_and_batch_limit() -> None:
    assert sum(part.tokens for part in plan(256, 10**6, 20_000)) <= 20_000
    assert all(part.prompt + part.output <= 1000 for part in plan(256, 1000, 100_000))
    assert all(part.width <= 8 for part in plan(8, 10**6, 100_000))
    with pytest.raises(ConfigError, match="leaves too little to send"):
        plan(256, 10**6, 100)


def test_a_probe_ends_when_its_time_is_over() -> None:
    """A server 30 times as slow: what was done in 5 s counts, the rest is not sent."""
    server = FakeServer(1.0, 30.0)
    done = probed(server, plan(128, 8192, 100_000), seconds=5.0)
    assert 2 <= len(set(done.parts)) < 7 and len(server.seen) < 120
    with pytest.raises(CalibrationError, match=r"less than two parts were answered within 0\.1 s"):
        probed(FakeServer(1.0, 30.0), plan(128, 8192, 100_000), seconds=0.1)


def test_lengths_the_server_refuses_are_not_sent() -> None:
    server = FakeServer(models={"data": [{**MODELS["data"][0], "max_model_len": 600}]})
    done = probed(server, plan(8, 8192, 100_000))
    assert max(len(request["prompt"]) + request["max_tokens"] for request in server.seen) <= 600
    assert len(set(done.parts)) == 4


def test_a_redirect_is_not_followed() -> None:
    """To another server, which sees nothing."""
    other = FakeServer()

    async def work() -> None:
        elsewhere = await other.start()
        port = elsewhere.sockets[0].getsockname()[1]
        first = FakeServer(status="307 Temporary Redirect", location=f"http://127.0.0.1:{port}/v1/models")
        listening = await first.start()
        try:
            address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            await Probe(address, 10.0, 128_000).run(plan(8, 500, 100_000), 500)
        finally:
            listening.close()
            elsewhere.close()

    with pytest.raises(CalibrationError, match=r"answered by a redirect to .*, which is not followed"):
        run_virtually(work)
    assert not other.seen


@pytest.mark.parametrize(("server", "message"), [
    (FakeServer(status="401 Unauthorized"), "answered by status 401: 'no'"),
    (FakeServer(models={"data": []}), "is no list of models"),
    (FakeServer(models={"data": "x"}), "is no list of models")])
def test_other_answers_are_told(server: FakeServer, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        probed(server, plan(8, 500, 100_000))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "http://user@host:1", "http://h:99999",
                                 "http://host/v1?key=1", "file:///etc/passwd"])
def test_an_address_must_be_one(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        checked_address(url)


def test_an_address_is_cut_to_what_stands_before_v1() -> None:
    assert checked_address("http://localhost:8000/v1/") == "http://localhost:8000"
    assert checked_address("https://[::1]:8000/here/v1") == "https://[::1]:8000/here"


@pytest.fixture
def real_server() -> Iterator[tuple[FakeServer, str]]:
    """The same server on a loop of real time in a thread, 20 times as fast as an H100."""
    server, loop, ready = FakeServer(0.05, 0.05), asyncio.new_event_loop(), threading.Event()
    place: list[Any] = []

    def serve() -> None:
        asyncio.set_event_loop(loop)
        place.append(loop.run_until_complete(server.start()))
        ready.set()
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server, f"http://127.0.0.1:{place[0].sockets[0].getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_nothing_is_sent_before_it_is_asked_for(real_server: tuple[FakeServer, str], tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Without --yes the plan is printed and the server sees no request; with it profiles are written."""
    server, address = real_server
    asked = ["calibrate", "engine", "--url", address, *FLAGS, "--max-tokens", "12000"]
    assert main(asked) == 0
    told = capsys.readouterr()
    assert "tokens in" in told.out and "nothing was sent; add --yes" in told.err and not server.seen
    assert main([*asked, "--yes", "--out", str(tmp_path / "mine")]) == 0
    sent = sum(len(request["prompt"]) + request["max_tokens"] for request in server.seen)
    assert 0 < sent <= 12_000
    assert (tmp_path / "mine" / "host.yaml").is_file() and (tmp_path / "mine" / "gpu.yaml").is_file()


def test_an_address_without_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "engine", "--url", "http://127.0.0.1:9", *FLAGS, "--yes"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("http://127.0.0.1:9: ConnectError")
