"""How much a result hangs on the host: the same run with the fast and the slow host's CPU times.

Launch and front-end times differ by a factor of two and more between hosts of equal GPUs. Where steps are launched
kernel by kernel (eager), a launch may take longer than the GPU's work, and the host decides latency, throughput and on
which side of the wall a load lies.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simulator.profiles.host import Host, list_hosts
from simulator.result import Result
from simulator.scenario.setup import cost_on
from simulator.text import seconds

EAGER_SHARE: Final = 0.01
"""Share of steps launched without graphs from which the host is worth a second look."""
MOST_REQUESTS: Final = 50_000
"""Longer runs are not repeated."""


def eager_launches_matter(result: Result) -> bool:
    """True where eager steps are more than a few. With launches in worker processes the scheduler does not see them:
    there prefill stands for them."""
    if result.setup.gpu.mark == "textbook" or result.setup.pools:
        return False
    totals = result.totals
    eager = int(totals["eager"].sum())
    if result.scenario.hardware.gpus > 1 and result.setup.engine.worker_processes:
        return eager > 0 or int(totals["prefill"].sum()) > 0
    return eager > EAGER_SHARE * int(totals["steps"].sum())


def host_sensitivity(result: Result, simulate: Callable[..., Result]) -> list[dict[str, Any]]:
    """One entry a host, fastest first, the run's own included: host, cpu_scale, mark, this_run, verdict, ttft_mean_s,
    tpot_mean_s, output_tokens_per_s. `simulate` (simulator.run) runs it again. Empty where eager launches do not matter
    or the run is long."""
    if len(result.trace) > MOST_REQUESTS or not eager_launches_matter(result):
        return []
    own = result.setup.host
    others = [host for host in list_hosts() if host.cpu_scale != own.cpu_scale or host.times != own.times]
    rows = [_row(host, _again(result, host, simulate), host is own) for host in (own, *others)]
    return sorted(rows, key=lambda row: float(row["cpu_scale"]))


def _again(result: Result, host: Host, simulate: Callable[..., Result]) -> Result:
    """The same run on another host."""
    if host is result.setup.host:
        return result
    setup = replace(result.setup, host=host, cost=cost_on(result.setup, host))
    return simulate(result.scenario, "auto", trace=result.trace, setup=setup, replication=result.replication)


def _row(host: Host, result: Result, own: bool) -> dict[str, Any]:
    summary = result.summary
    return {
        "host": host.name, "cpu_scale": host.cpu_scale, "mark": host.mark, "this_run": own,
        "verdict": summary["banner"]["verdict"], "ttft_mean_s": summary["ttft_s"]["mean"],
        "tpot_mean_s": summary["tpot_s"]["mean"],
        "output_tokens_per_s": summary["throughput"]["output_tokens_per_s"],
    }


def host_sentences(rows: list[dict[str, Any]]) -> list[str]:
    """The entries of `host_sensitivity` in words."""
    if not rows:
        return []

    def shown(row: dict[str, Any]) -> str:
        times = [f"{name} {seconds(row[key])}" for name, key in (("TTFT", "ttft_mean_s"), ("TPOT", "tpot_mean_s"))
                 if row[key] is not None]
        return ", ".join([*times, row["verdict"]])

    def words(row: dict[str, Any]) -> str:
        return f"{shown(row)} on the {row['host']} one{', used here' if row['this_run'] else ''}"

    if len({shown(row) for row in rows}) == 1:
        return [f"host: it does not matter here: {shown(rows[0])} on each of {', '.join(row['host'] for row in rows)}"]
    why = "host: steps without CUDA graphs wait for the CPU, so a faster or slower one changes the means: "
    lines = [why + "; ".join(map(words, rows))]
    verdicts = {row["verdict"] for row in rows}
    if len(verdicts) > 1 and "undecided" in verdicts:
        lines.append("where it is undecided this run is too short to tell: a longer one would (more requests)")
    elif len(verdicts) > 1:
        lines.append("so the verdict depends on the host")
    return lines
