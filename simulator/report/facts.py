"""What a report says in words and rows: pure functions result or summary -> text, units included."""

from typing import Any, Final

from simulator.metrics.readings import few_line
from simulator.metrics.reuse import reuse_sentences
from simulator.run import Result
from simulator.scenario.setup import Setup
from simulator.text import MISSING, gpus_of, number, seconds, sentence, several, share, verb

Rows = list[tuple[str, str, str]]
"""(what, value, what it means)"""

LATENCIES: Final = (
    ("ttft_s", "TTFT, time to first token"),
    ("queue_s", "of it: waiting in the queue"),
    ("prefill_s", "of it: prefill"),
    ("frontend_s", "of it: front end"),
    ("tpot_s", "TPOT, time per output token"),
    ("itl_s", "ITL, gap between two tokens"),
    ("e2e_s", "E2E, whole answer"),
    ("normalized_latency_s", "E2E per output token"),
)
MOSTLY: Final = 0.85
"""From this share on a resource counts as used up: the first and the last requests of a run find it empty."""
VERDICTS: Final = {
    "stable": "Stable: the backlog does not grow at this load.",
    "overloaded": "Overloaded: requests come faster than they are served; latencies below depend on how long "
    "the trace is and say little about a longer one.",
    "rejecting": "Rejecting: requests are refused, given up or lost for good; latencies below count them as infinite.",
    "missing its targets": "Missing its targets: the backlog does not grow, but over 1 % of the requests miss one.",
    "undecided": "Undecided: this run is too short to tell whether the backlog grows.",
}


def setting(result: Result) -> str:
    """Model, GPUs, replicas, policy, engine and load in one line."""
    scenario, setup = result.scenario, result.setup
    hardware = scenario.hardware
    engine = "textbook" if setup.engine.name == "unit" else f"{setup.engine.name} {setup.engine.version}"
    gpus = gpus_of(setup.gpu.name, hardware.tensor_parallel, hardware.pipeline_parallel)
    fleet = f"{scenario.cluster.size} replicas, each {gpus}" if scenario.cluster.size > 1 else gpus
    if setup.pools:
        fleet = " and ".join(f"{name}: {_replicas(pool)}" for name, pool in setup.pools.items())
    weights = setup.model.weight_format(hardware.weight_dtype).dtype
    model = f"{setup.model.name} ({weights} weights, {hardware.kv_dtype} KV) on "
    what = "textbook steps of equal length" if setup.gpu.name == "unit" else model + fleet
    load = scenario.load.kind + (
        f" load, {scenario.load.width} wide" if scenario.load.kind != "open" else " load"
    )
    drafts = setup.speculation
    drafting = f" with {drafts.tokens} {drafts.method} drafts" if drafts else ""
    return (
        f"{what} · policy {setup.policy.name}, up to {several(setup.limits.max_num_seqs, 'sequence')} · "
        f"engine {engine}{drafting} · {load}"
    )


def _replicas(pool: Setup) -> str:
    """`4 x h100-sxm` or `2 replicas of 4 x h100-sxm`."""
    count, hardware = pool.scenario.cluster.replicas, pool.scenario.hardware
    gpus = gpus_of(pool.gpu.name, hardware.tensor_parallel, hardware.pipeline_parallel)
    return f"{count} x {gpus}" if hardware.gpus == 1 else f"{count} replicas of {gpus}"


def verdict(summary: dict[str, Any]) -> tuple[str, str, str]:
    """(code, sentence, reason)."""
    found = summary["banner"]
    return found["verdict"].split(" ")[0], VERDICTS[found["verdict"]], found["reason"]


def runs_out(result: Result) -> str:
    """What an overloaded run has too little of, in words; empty for other verdicts and for pools."""
    summary, most = result.summary, result.setup.limits.max_num_seqs
    if summary["banner"]["verdict"] != "overloaded" or result.setup.pools:
        return ""
    slots, blocks = summary["slot_utilization"] or 0.0, summary["kv"]["peak_use"] or 0.0
    used = f"KV blocks were used to {share(blocks)} at the most"
    if blocks >= MOSTLY or summary["requests"]["preemptions"]:
        return f"What runs out: KV blocks, used to {share(blocks)} at the most; {share(slots)} of {most} slots held."
    if slots >= MOSTLY:
        return f"What runs out: slots, {share(slots)} of {most} a replica held on average; {used}."
    return (f"What runs out: GPU time, busy for {share(summary['busy_share'])}; {share(slots)} of {most} slots "
            f"held on average, {used}.")


def answer(result: Result) -> list[str]:
    """The result in a few sentences."""
    summary = result.summary
    counts, rate = summary["requests"], summary["throughput"]
    lines = [
        f"{counts['completed']:,} of {several(counts['arrived'], 'request')} "
        f"{verb(counts['completed'], 'was', 'were')} answered in "
        f"{seconds(summary['makespan_s'])}, at {number(rate['output_tokens_per_s'])} output tokens/s and "
        f"{number(rate['requests_per_s'])} requests/s."
    ]
    ttft, tpot, e2e = summary["ttft_s"], summary["tpot_s"], summary["e2e_s"]
    if ttft["p50"] is not None:
        late = (
            f"; 99 % within {seconds(ttft['p99'])}"
            if ttft["p99"] is not None
            else "; over 1 % were never answered"
        )
        lines.append(f"Half of the requests got their first token within {seconds(ttft['p50'])}{late}.")
    if tpot["p50"] is not None:
        slowest = "over 1 % never came" if e2e["p99"] is None else f"{seconds(e2e['p99'])} at p99"
        lines.append(
            f"After it, tokens followed every {seconds(tpot['p50'])} (median); whole answers took "
            f"{seconds(e2e['p50'])} (median), {slowest}."
        )
    elif result.setup.limits.stream == 0:
        lines.append(
            "Answers are returned whole at the end of their batch, so there is no time per output token."
        )
    drafted = summary.get("speculation")
    if drafted and drafted["tokens_per_step"] is not None:
        lines.append(f"A step gave a sequence {drafted['tokens_per_step']:.2f} tokens on average: "
                     f"{share(drafted['acceptance_rate'])} of the drafts were right.")
    lines += fleet_lines(summary)
    found = summary["kv"]["prefix_cache"]
    reused = reuse_sentences(result.prefix_reuse, found["hit_rate"], found.get("host", {}).get("hit_rate"))
    lines += [sentence(line) for line in reused]
    few = few_line(summary)
    lines += [sentence(few)] if few else []
    lines += [
        f"Worst {int(length) // 60} minutes: p99 {label} {seconds(block['p99'])}, from {seconds(block['start_s'])} on."
        for key, label in (("ttft_s", "TTFT"), ("e2e_s", "E2E"))
        for length, block in summary["windows"].get(key, {}).items()
    ]
    attained = summary["goodput"]["attained"]
    if attained is not None:
        lines.append(
            f"{share(attained)} of the requests met every target ({_targets(summary['goodput']['slo'])})."
        )
    return lines


def fleet_lines(summary: dict[str, Any]) -> list[str]:
    """What the fleet was and cost, and what crashes and restarts did."""
    if "fleet" not in summary:
        return []
    own, lost = summary["fleet"], summary["changes"]
    lines = []
    if own["mean_replicas"] is not None and (own["usd"] < own["usd_fixed"] or own["replicas_started"]):
        cheaper = 1 - own["usd"] / own["usd_fixed"] if own["usd_fixed"] else None
        least, most = own["least_replicas"], own["peak_replicas"]
        had = f"{least} to {most} replicas, {own['mean_replicas']:.3g} on average" if least < most else (
            f"{most} replica{'s' * (most != 1)} all the time")
        lines.append(
            f"The fleet had {had} ({own['replica_hours']:.3g} replica hours, {own['hours']['starting']:.2g} of them "
            f"starting): {own['usd']:,.2f} USD, {share(cheaper)} less than all of them all the time.")
    if lost["requests_failed"] or lost["down_s"]:
        gone = summary["requests"]["lost"]
        ends = f", {gone:,} of them for good" if gone else " and submitted again"
        lines.append(f"Replicas were out of service for {seconds(lost['down_s'])} in all. With them requests were "
                     f"lost {several(lost['requests_failed'], 'time')}{ends}; "
                     f"{several(lost['tokens_lost'], 'token')} had been sent for nothing.")
    return lines


def _targets(slo: dict[str, float | None]) -> str:
    names = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "queue_s": "queue"}
    return ", ".join(f"{names.get(key, key)} ≤ {seconds(value)}" for key, value in slo.items() if value)


def cards(result: Result) -> Rows:
    """The key numbers: (label, value, note)."""
    summary = result.summary
    ttft, tpot, e2e, counts = (summary[key] for key in ("ttft_s", "tpot_s", "e2e_s", "requests"))
    found = [
        (
            "output tokens/s",
            number(summary["throughput"]["output_tokens_per_s"]),
            f"{number(summary['throughput']['requests_per_s'])} requests/s",
        ),
        *((f"{name} p99", seconds(own["p99"], "∞" if own["count"] else MISSING),
           f"median {seconds(own['p50'], '∞' if own['count'] else MISSING)}")
          for name, own in (("TTFT", ttft), ("TPOT", tpot), ("E2E", e2e))),
        (
            "slots in use",
            share(summary["slot_utilization"]),
            "over all pools" if result.setup.pools else f"of {result.setup.limits.max_num_seqs} per replica",
        ),
        (
            "KV peak",
            share(summary["kv"]["peak_use"]),
            f"of KV blocks; mean {share(summary['kv']['mean_use'])}",
        ),
    ]
    if summary["goodput"]["attained"] is not None:
        found.insert(4, ("within SLO", share(summary["goodput"]["attained"]), "of all that arrived"))
    failed = counts["rejected"] + counts["aborted"] + counts["lost"] + counts["unfinished"]
    if failed or counts["preemptions"]:
        found.append(("not answered", f"{failed:,}", f"{counts['preemptions']:,} preemptions"))
    return found


def pools(summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(pool, cells) when the fleet has pools."""
    found = []
    for name, own in summary.get("pools", {}).items():
        gpus = gpus_of(own["gpu"], own["tensor_parallel"], own["pipeline_parallel"])
        role = "" if own["role"] == "both" else f", {own['role']}"
        cells = [f"{own['replicas']} of {gpus}{role}", number(own["requests"]["arrived"])]
        cells += [seconds(own[key]["p99"]) for key in ("ttft_s", "tpot_s", "e2e_s")]
        cells += [share(own["goodput"]["attained"]), share(own["busy_share"]), share(own["slot_utilization"])]
        found.append((name, [*cells, share(own["kv"]["peak_use"]), number(own["queue"]["max_waiting"])]))
    return found


def classes(summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(class, cells) when the trace has more than one class of requests."""
    found = []
    for name, own in summary.get("per_class", {}).items():
        cells = [number(own["requests"]["arrived"]), number(own["requests"]["completed"])]
        cells += [seconds(own[key][mark]) for key in ("ttft_s", "tpot_s", "e2e_s") for mark in ("p50", "p99")]
        found.append((name, [*cells, share(own["goodput"]["attained"])]))
    return found
