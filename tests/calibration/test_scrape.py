"""calibrate engine from the text of /metrics: what is read, what is refused, and that the intervals hold the truth."""

from pathlib import Path

import numpy as np
import pytest
from calibration_servers import FLAGS, SERVER, answered, table_of

from calibration.cli_engine import observations
from calibration.scales import fit_scales
from calibration.scrape import ITL, OUTPUT, PROMPT, Histogram, read_scrape, since
from simulator.cli.main import main
from simulator.errors import CalibrationError

EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, float("inf"))


def histogram(name: str, values: np.ndarray) -> str:
    below = [int((values <= edge).sum()) for edge in EDGES]
    label = 'engine="0",model_name="m"'
    lines = [f"# TYPE vllm:{name} histogram"]
    lines += [f'vllm:{name}_bucket{{{label},le="{"+Inf" if edge == float("inf") else float(edge)}"}} {count}'
              for edge, count in zip(EDGES, below, strict=True)]
    lines += [f"vllm:{name}_count{{{label}}} {len(values)}", f"vllm:{name}_sum{{{label}}} {values.sum()}"]
    return "\n".join(lines)


def scrape(path: Path, cpu: float, gpu: float, queue: float = 0.0) -> Path:
    """Of 600 requests at 8 a second; steps: one for every token of a lone request, so by the time they share."""
    draw = np.random.default_rng(11)
    table = table_of(draw.exponential(1 / 8.0, 600).cumsum(), draw.integers(50, 1200, 600), draw.integers(20, 200, 600))
    done = answered(table, cpu, gpu)
    by_id = table.set_index("id").loc[done.ids]
    gaps = by_id.output_tokens.to_numpy() - 1
    itl = np.repeat((done.last_s - done.first_s) / gaps, gaps)
    path.write_text("\n".join([
        "# HELP vllm:num_requests_running Number of requests.", 'vllm:num_requests_running{engine="0"} 0.0',
        histogram("time_to_first_token_seconds", done.first_s - done.arrival_s),
        histogram("inter_token_latency_seconds", itl), histogram("iteration_tokens_total", np.ones(done.steps)),
        histogram("request_prompt_tokens", by_id.prompt_tokens.to_numpy()),
        histogram("request_generation_tokens", by_id.output_tokens.to_numpy()),
        histogram("request_queue_time_seconds", np.full(600, queue))]) + "\n")
    return path


@pytest.mark.parametrize(("cpu", "gpu"), [(1.0, 1.0), (1.5, 1.3)])
def test_the_intervals_hold_the_truth(tmp_path: Path, cpu: float, gpu: float) -> None:
    """Arrivals and lengths are drawn anew: the GPU within 10 %, and told less sharply than a client's file tells it."""
    (observed,), _ = observations([scrape(tmp_path / "metrics.txt", cpu, gpu)], SERVER)
    found = fit_scales([observed])
    assert found.gpu.low < gpu < found.gpu.high and found.cpu.low < cpu < found.cpu.high
    assert found.gpu.value == pytest.approx(gpu, rel=0.1)


def test_the_rate_follows_from_littles_law(tmp_path: Path) -> None:
    """8 requests a second were sent."""
    (observed,), _ = observations([scrape(tmp_path / "metrics.txt", 1.0, 1.0)], SERVER)
    assert observed.rate == pytest.approx(8.0, rel=0.15)  # type: ignore[attr-defined]


def test_two_scrapes_count_what_came_between(tmp_path: Path) -> None:
    """A server twice scraped, the second time with everything doubled: the difference is the first again."""
    path = scrape(tmp_path / "metrics.txt", 1.0, 1.0)
    once = read_scrape(path)
    twice = {name: Histogram(2 * h.total, 2 * h.count, h.edges, tuple(2 * c for c in h.below))
             for name, h in once.items()}
    for name, each in since([once, twice]).items():
        assert (each.total, each.count, each.below) == (once[name].total, once[name].count, once[name].below)


def test_lengths_follow_the_buckets() -> None:
    """Half of the prompts up to 100 tokens, half up to 1,000, 300 on average."""
    found = Histogram(300.0 * 100, 100, (10.0, 100.0, 1000.0, float("inf")), (0, 50, 100, 100))
    values = found.drawn(np.linspace(0.005, 0.995, 100))
    assert values.mean() == pytest.approx(300.0) and 0.4 < np.mean(values <= 110) <= 0.55


def test_what_a_scrape_must_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scrape(tmp_path / "metrics.txt", 1.0, 1.0)
    text = path.read_text()
    for name in (ITL, PROMPT, OUTPUT):
        path.write_text("\n".join(line for line in text.splitlines() if name not in line))
        with pytest.raises(CalibrationError, match=f"no histogram vllm:{name}"):
            read_scrape(path)
    path.write_text("# HELP other\nother 1\n")
    assert main(["calibrate", "engine", str(path), *FLAGS]) == 2
    assert "accepted: the text of a vLLM server's /metrics" in capsys.readouterr().err
    path.write_text(text)
    assert main(["calibrate", "engine", str(path), "--hardware", "h100"]) == 2
    assert "needed: --model" in capsys.readouterr().err


def test_a_server_that_cannot_keep_up_tells_nothing_of_steps(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"requests wait for .* % of their TTFT"):
        observations([scrape(tmp_path / "metrics.txt", 1.0, 1.0, queue=10.0)], SERVER)
