"""How to read a summary: the one word for a run, percentiles of too few requests, worst windows."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.metrics.latency import PERCENTILES, Fates, seconds
from simulator.metrics.samples import needed, worst_window
from simulator.text import several, share, verb
from simulator.units import NS_PER_S, to_seconds

if TYPE_CHECKING:
    from simulator.result import Result

Block = dict[str, Any]
FAILING: Final = 0.01
"""Share of the requests that may be refused, or miss a target, before a run is called after it."""
WINDOWS: Final = (300, 3600)
"""[s] windows whose worst p99 is given."""
WINDOWED: Final = ("ttft_s", "tpot_s", "e2e_s")
SHARE: Final = 0.99
VERDICTS: Final = ("stable", "undecided", "missing its targets", "rejecting", "overloaded")
"""What `banner` may say of a run, from good to bad."""


def banner(summary: Block) -> dict[str, str]:
    """{"verdict", "reason"}: overloaded, rejecting, missing its targets, undecided or stable, in this order.

    A request that its client gave up or that was lost with its replica counts as refused: it has no answer.
    """
    steady, counts, attained = summary["stability"], summary["requests"], summary["goodput"]["attained"]
    arrived = counts["arrived"]
    failed = counts["rejected"] + counts["aborted"] + counts["lost"]
    if steady["verdict"] != "overloaded" and arrived and failed > FAILING * arrived:
        words = {"rejected": "refused", "aborted": "given up", "lost": "lost"}
        kinds = [f"{word} ({counts[name]:,})" for name, word in words.items() if counts[name]]
        what = " or ".join(kinds) if len(kinds) > 1 else kinds[0].partition(" (")[0]
        who = f"{failed:,} of {several(arrived, 'request')} {verb(failed, 'was', 'were')}"
        why = f"{who} {what} ({share(failed / arrived)})"
        return {"verdict": "rejecting", "reason": f"{why}; of the rest: {steady['reason']}"}
    if steady["verdict"] != "overloaded" and attained is not None and attained < 1 - FAILING:
        why = f"{share(1 - attained)} of the requests miss a target"
        return {"verdict": "missing its targets", "reason": f"{why}; {steady['reason']}"}
    return {"verdict": steady["verdict"], "reason": steady["reason"]}


def few(summary: Block, counts: dict[str, int]) -> dict[str, list[str]]:
    """Time -> percentiles that its `counts` of requests cannot tell at 90 % confidence (samples.needed)."""
    found = {
        name: [label for label, share in PERCENTILES if 0 < count < needed(share)]
        for name, count in counts.items()
        if summary[name]["count"]
    }
    return {name: labels for name, labels in found.items() if labels}


def few_line(summary: Block) -> str:
    """The same in words, for the TTFT; empty when every percentile has its requests."""
    labels = summary["few_requests"].get("ttft_s", [])
    if not labels:
        return ""
    names = {"p999": "p99.9"}
    wanted = ", ".join(f"{names.get(k, k)} {needed(share):,}" for k, share in PERCENTILES if k in labels)
    return f"too few requests for some percentiles, which are then near the largest value seen; they take: {wanted}"


def windows(result: "Result", fate: Fates) -> Block:
    """Worst p99 by window of arrival: {"ttft_s": {"300": {"p99", "start_s", "requests"}}}; None = infinite.

    Windows start every half length; those with too few requests for a p99 are left out, and so is a length that the
    arrivals do not hold twice.
    """
    arrival = to_seconds(result.requests.arrival)
    if not fate.measured.any():
        return {}
    own = result.requests.arrival[fate.measured]
    span = (int(own.max()) - int(own.min())) / NS_PER_S
    blocks: Block = {}
    for name in WINDOWED:
        values = seconds(result, name, fate)
        rows = fate.measured & ~np.isnan(values)
        for length in (w for w in WINDOWS if span >= 2 * w):
            found = worst_window(arrival[rows], values[rows], length, SHARE, needed(SHARE))
            if found is not None:
                worst = float(found.value) if np.isfinite(found.value) else None
                row = {"p99": worst, "start_s": found.start_s, "requests": found.requests}
                blocks.setdefault(name, {})[str(length)] = row
    return blocks
