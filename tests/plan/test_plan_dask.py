"""A plan on a Dask cluster: joblib's own switch, nothing else, and the same answer."""

import joblib  # type: ignore[import-untyped]
import pytest

from simulator.planning import points
from simulator.planning.plan import plan
from simulator.planning.spec import plan_from


@pytest.mark.nightly
def test_points_run_on_the_workers_and_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(points, "PARALLEL_FROM", 0)
    spec = plan_from({
        "name": "textbook",
        "workload": {"arrivals": {"kind": "poisson", "rate": 30, "requests": 3000}, "prompt": 1,
                     "output": {"kind": "exponential", "mean": 100}},
        "step_s": 0.001, "max_model_len": 100_000, "slo": {"queue_p95_s": 0.5},
        "candidates": {"gpu": "unit", "policy": "orca", "max_num_seqs": 1, "replicas": {"max": 12}},
    })  # fmt: skip
    with (distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
          distributed.Client(cluster) as client, joblib.parallel_config(backend="dask")):  # fmt: skip
        there = plan(spec, jobs=4, explain=False)
        benches = client.run(lambda: len(points._benches))
    here = plan(spec, jobs=1, explain=False)
    assert sum(benches.values()) > 0
    assert there.best is not None and here.best is not None
    assert there.best.outcome == here.best.outcome
