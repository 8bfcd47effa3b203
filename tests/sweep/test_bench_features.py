"""Each benchmark case of a feature really has it on: what it alone leaves behind is there. No time is asserted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simulator import simulate
from simulator.bench.bench import case_names
from simulator.bench.features import FEATURES, PLAIN, feature_scenario

Signs = dict[str, Callable[[Any], Any]]
SIGNS: Signs = {
    "prefix_cache_unshared": lambda r: r.setup.limits.prefix == 1 and not r.requests.found.any(),
    "prefix_cache_shared": lambda r: r.summary["kv"]["prefix_cache"]["hit_rate"] > 0.1,
    "conversations": lambda r: r.requests.found.any() and r.summary["sessions"]["sessions"] > 1,
    "kv_offload": lambda r: r.totals["loaded"].sum() > 0,
    "fastserve": lambda r: r.setup.limits.swap_blocks > 0 and r.requests.level.any(),
    "splitfuse": lambda r: r.setup.policy.name == "splitfuse",
    "priority": lambda r: len(set(r.requests.key.tolist())) == 2,
    "shortest_predicted": lambda r: len(set(r.requests.predicted.tolist())) > 10,
    "fair_shares": lambda r: set(r.requests.tenant.tolist()) == {0, 1},
    "impatient_clients": lambda r: r.requests.sent.size > 0,
    "closed_loop": lambda r: np.count_nonzero(r.requests.arrival == r.requests.arrival.min()) == 64,
    "speculation": lambda r: 0 < r.totals["accepted"].sum() < r.totals["drafts"].sum(),
    "swap": lambda r: r.totals["swapped_in"].sum() > 0,
    "tgi": lambda r: r.setup.policy.name == "tgi",
    "trtllm": lambda r: r.setup.policy.name == "max_utilization",
    "window": lambda r: r.setup.limits.window > 0,
    "pipeline": lambda r: r.setup.limits.stages == 2,
    "two_pools": lambda r: r.summary["transfers"]["requests"] > 0,
}


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_the_case_has_its_feature_on_and_plain_has_none(name: str) -> None:
    with_it = simulate(feature_scenario(name, 100), "reference")
    assert SIGNS[name](with_it)
    assert with_it.summary["requests"]["completed"] >= 50 and f"feature_{name}" in case_names()
    plain = feature_scenario(PLAIN, 100)
    assert plain.policy.name == "chunked" and plain.kv.prefix_caching is False and plain.kv.swap is None
