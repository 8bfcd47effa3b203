"""The plan file: what is accepted, and errors that name file, line, key, value and what is accepted."""

from pathlib import Path

import pytest
import yaml

from simulator.errors import ConfigError
from simulator.planning.candidate import candidates_of
from simulator.planning.slo import MEAN, Target
from simulator.planning.spec import load_plan, plan_from

GOOD = """name: p
workload:
  requests: {output: [4, 4]}
slo:
  ttft_p99_s: 0.5
  classes: {chat: {e2e_mean_s: 3}}
candidates:
  gpu: [h100-sxm, l40s]
  max_num_seqs: 64
  replicas: {max: 9}
prices:
  l40s: 0.9
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return path


def test_targets_candidates_and_ranges_are_read(tmp_path: Path) -> None:
    spec = load_plan(write(tmp_path, GOOD))
    assert spec.slo.targets == (Target("ttft", 99.0, 0.5), Target("e2e", MEAN, 3.0, "chat"))
    assert [c.gpu for c in candidates_of(spec)] == ["h100-sxm", "l40s"]
    assert spec.candidates.allowed(1) == tuple(range(1, 10))


def test_total_gpus_keeps_the_layouts_of_that_size_alone() -> None:
    spec = plan_from(
        {
            "workload": {"requests": {"output": [1]}},
            "slo": {"ttft_p50_s": 1},
            "candidates": {"total_gpus": [6, 8], "replicas": {"max": 16}},
        }
    )
    assert [spec.candidates.allowed(tp) for tp in (1, 2, 4)] == [(6, 8), (3, 4), (2,)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ttft_p99_s: 0.5", "ttf_p99_s: 0.5", ["slo.ttf_p99_s", "accepted"]),
        ("ttft_p99_s: 0.5", "ttft_p99_s: 0", ["slo.ttft_p99_s", "> 0", "got 0"]),
        ("ttft_p99_s: 0.5", "ttft_p0_s: 0.5", ["slo.ttft_p0_s", "between 0 and 100"]),
        ("replicas: {max: 9}", "replicas: {min: 5, max: 3}", ["plan.yaml:10", "replicas.max", "got 3"]),
        ("max_num_seqs: 64", "max_num_seqs: 0", ["plan.yaml:9", "must be >= 1", "got 0"]),
        ("max_num_seqs: 64", "max_seqs: 64", ["plan.yaml:9", "max_seqs", "did you mean max_num_seqs?"]),
        ("gpu: [h100-sxm, l40s]", "gpu: [l40s, l40s]", ["plan.yaml:8", "repeat"]),
        ("l40s: 0.9", "b20: 0.9", ["prices.b20", "no effect", "h100-sxm, l40s"]),
        ("l40s: 0.9", "l40s: -1", ["prices.l40s", "> 0", "-1"]),
        ("name: p", "name: p\nsurvive: -1", ["plan.yaml:2", "survive", ">= 0", "got -1"]),
        ("name: p", "name: p\ngrowth: 0", ["plan.yaml:2", "growth", "> 0", "got 0"]),
        ("name: p", "name: p\nobjective: cheapest", ["plan.yaml:2", "objective", "min_cost"]),
        ("name: p", "name: p\nstep_s: 1.0", ["step_s", "no effect"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as error:
        load_plan(path)
    text = str(error.value)
    assert "\n" not in text
    assert "plan.yaml" in text
    for word in words:
        assert word in text


def test_the_plan_of_the_guide_is_accepted() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    block = guide.split("```yaml\n")[1].split("```")[0]
    spec = plan_from(yaml.safe_load(block))
    assert len(candidates_of(spec)) == 6
    assert spec.survive == 1 and spec.growth == 1.5
