"""The host of a plan is that of every fleet it simulates."""

from pathlib import Path
from typing import Any

import pytest

from simulator.errors import ConfigError
from simulator.planning.candidate import candidates_of, scenario_of
from simulator.planning.spec import plan_from
from simulator.scenario.setup import prepare


def spec(base: Path = Path(), **changes: Any) -> Any:
    arrivals = {"kind": "poisson", "rate": 4.0, "requests": 100}
    return plan_from({"workload": {"arrivals": arrivals, "prompt": 400, "output": 8}, "slo": {"ttft_p99_s": 0.5},
                      "candidates": {"gpu": ["h100-sxm"]}, **changes}, base)


@pytest.mark.parametrize("host", ["slow", {"name": "slow"}, {"cpu_scale": 2.0}])
def test_a_slow_host_doubles_the_launch_of_every_step(host: Any) -> None:
    """`slow` is assumed to take twice as long."""
    costs = [prepare(scenario_of(each, candidates_of(each)[0])).cost for each in (spec(), spec(host=host))]
    assert costs[1].cpu_ns[1, 1000] == pytest.approx(2 * costs[0].cpu_ns[1, 1000], rel=1e-6)
    assert costs[1].dense_ns[0, 1] == costs[0].dense_ns[0, 1]


def test_a_host_file_stands_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nmark: fitted\nscaled_from: measured\n"
                                        "cpu_scale: {value: 1.5, unit: '1', mark: fitted, source: own runs}\n")
    mine = spec(tmp_path, host="mine.yaml")
    assert prepare(scenario_of(mine, candidates_of(mine)[0])).host.cpu_scale == 1.5


def test_an_unknown_host_is_said_when_the_plan_is_read() -> None:
    with pytest.raises(ConfigError, match=r"host.name: unknown host 'fats'"):
        spec(host="fats")
