"""How far to trust one result: 90 % intervals of its metrics, and what lies outside measurements.

Widths come from hwprofiles/uncertainty.yaml (fit residuals and repeat spread of the real engine), widened by the
weaker mark of GPU and engine profile. They are about the model's error, not about the luck of one trace: for that,
replicate (simulator.metrics.stability).
"""

from typing import Any, Final

from simulator.cost.ranges import extrapolations
from simulator.profiles.uncertainty import load_uncertainty
from simulator.result import Result

_PLACES: Final = {
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "ttft_mean_s": ("ttft_s", "mean"), "ttft_p50_s": ("ttft_s", "p50"), "ttft_p99_s": ("ttft_s", "p99"),
    "tpot_mean_s": ("tpot_s", "mean"), "tpot_p99_s": ("tpot_s", "p99"),
    "e2e_mean_s": ("e2e_s", "mean"), "e2e_p99_s": ("e2e_s", "p99"),
}
"""Metric of the uncertainty file -> (section, key) of a summary."""
_WEAKER: Final = ("measured", "fitted", "scaled", "datasheet")


def mark_of(result: Result) -> str:
    """The weakest of the marks of GPU, engine and host; an engine or host that was not measured counts as scaled."""
    setup = result.setup
    if setup.gpu.mark == "textbook":
        return "textbook"
    if result.scenario.cost_model == "roofline":
        return "datasheet"
    engine = setup.engine.mark if setup.engine.mark in ("measured", "fitted") else "scaled"
    host = "measured" if setup.host.mark == "measured" and setup.host.cpu_scale == 1.0 else "scaled"
    return max(setup.gpu.mark, engine, host, key=_WEAKER.index)


def trust(result: Result, summary: dict[str, Any]) -> dict[str, Any]:
    """{"mark", "interval_90": {"ttft_s.mean": [low, high], ...}, "extrapolated": [sentences]} for a summary."""
    mark, setup, trace = mark_of(result), result.setup, result.trace
    known = load_uncertainty()
    intervals = {}
    for metric, (section, key) in _PLACES.items():
        value = summary[section][key]
        if value is not None and mark != "textbook":
            intervals[f"{section}.{key}"] = list(known.interval(metric, value, mark))
    beyond: list[str] = []
    if mark != "textbook":
        longest = int((trace.prompt + trace.output).max())
        beyond = extrapolations(setup.gpu, result.scenario.hardware.tensor_parallel, setup.limits.max_num_seqs,
                                setup.limits.max_num_batched_tokens, longest)
    return {"mark": mark, "interval_90": intervals, "extrapolated": beyond}
