"""The picture of KV memory, and the numbers that docs/batching.md tells beside it."""

import numpy as np

from scenarios import ROOT
from simulator import load_scenario, simulate
from simulator.report.memory_map import can_be_mapped, memory_figure
from simulator.run import Result


def run(name: str, **changes: object) -> Result:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return simulate(load_scenario(ROOT / f"batching_{name}.yaml").updated(given), "reference")


def areas(result: Result) -> tuple[float, float]:
    """(reserved and empty + filled, filled) token-steps, from the shapes of the picture."""
    def area(points: np.ndarray) -> float:
        x, y = points[:, 0], points[:, 1]
        return abs(float(np.sum(x * np.roll(y, 1) - y * np.roll(x, 1)))) / 2

    drawn = memory_figure([result]).axes[0].collections
    sizes = [sum(area(path.vertices) for path in each.get_paths()) for each in drawn]
    return sum(sizes[0::2]), sum(sizes[1::2])


def test_areas_are_what_was_reserved_and_filled() -> None:
    """A request of prompt p and output n holds 500 tokens for n steps, and fills p, p + 1, ..., p + n - 1 of them."""
    done = run("reserved")
    held, filled = areas(done)
    prompt, output = done.requests.prompt.astype(float), done.requests.output.astype(float)
    assert abs(held / float((500 * output).sum()) - 1) < 0.03  # 400 samples of 200 steps
    assert abs(filled / float((output * prompt + output * (output - 1) / 2).sum()) - 1) < 0.03


def test_blocks_are_rounded_up_by_less_than_one_a_request() -> None:
    held, filled = areas(run("paged"))
    tokens = float(run("paged").requests.output.sum())
    assert 0 < held - filled < 16 * tokens


def test_numbers_of_the_page() -> None:
    reserved, paged = run("reserved"), run("paged")
    assert reserved.totals["peak_running"].max() == 4 and paged.totals["peak_running"].max() == 8
    assert reserved.requests.first.max() == 101 * 10**9  # waits 100 steps, and the step that computes it
    assert (paged.requests.first == 10**9).all()
    assert paged.summary["kv"]["peak_use"] < 0.5
    assert run("paged", kv__num_gpu_blocks=64).requests.preempted.sum() == 0
    assert run("paged", kv__num_gpu_blocks=50).requests.preempted.sum() > 0


def test_it_is_drawn_where_it_says_something() -> None:
    assert can_be_mapped([run("reserved"), run("paged")])
    assert not can_be_mapped([run("paged")])
    assert not can_be_mapped([run("reserved"), run("paged", kv__num_gpu_blocks=50)])
