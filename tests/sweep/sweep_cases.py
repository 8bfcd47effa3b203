"""A small base scenario for the sweep tests."""

import copy
from pathlib import Path
from typing import Any

from simulator.scenario.spec import Scenario
from simulator.sweep.spec import SweepSpec, base_scenario

BASE: dict[str, Any] = {
    "workload": {"arrivals": {"kind": "poisson", "rate": 8, "requests": 300},
                 "prompt": {"kind": "lognormal", "mean": 600, "cv": 1.0, "max": 4000},
                 "output": {"kind": "lognormal", "mean": 60, "cv": 0.8, "max": 500}},
    "model": "llama-3.1-8b", "hardware": "h100-sxm", "policy": {"name": "chunked", "max_num_seqs": 64},
    "max_model_len": 8192, "slo": {"ttft_s": 0.5, "tpot_s": 0.05}, "seed": 3,
}


def make(axes: list[dict[str, Any]], replications: int = 1, requests: int = 300, **base: Any) -> SweepSpec:
    """A sweep over BASE (changed by `base`) with `requests` requests a point."""
    data = copy.deepcopy(BASE) | base
    if "arrivals" in data["workload"]:
        data["workload"]["arrivals"]["requests"] = requests
    return SweepSpec.model_validate({"name": "t", "base": data, "axes": axes, "replications": replications})


def base_of(spec: SweepSpec, folder: Path = Path()) -> Scenario:
    """The base scenario of a spec."""
    return base_scenario(spec, folder)
