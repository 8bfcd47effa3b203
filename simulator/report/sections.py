"""The tables of a report: batches, memory, assumptions, provenance; pure functions result -> rows."""

from typing import Any

from simulator.metrics.hosts import host_sentences
from simulator.report.facts import Rows
from simulator.report.slots import textbook_step
from simulator.run import Result
from simulator.text import number, seconds, sentence, several, share
from simulator.units import GIB


def definitions(summary: dict[str, Any]) -> dict[str, str]:
    """What each number means, with arrows as one character."""
    return {key: text.replace("->", "→") for key, text in summary["definitions"].items()}


def work_rows(result: Result) -> Rows:
    """Batches, queue and use of the GPU."""
    summary = result.summary
    batch, queue, spent, words = summary["batch"], summary["queue"], summary["time"], definitions(summary)
    hardware = result.scenario.hardware
    workers = result.setup.engine.worker_processes and hardware.tensor_parallel * hardware.pipeline_parallel > 1
    return [
        ("steps", number(summary["steps"]), "iterations of the engine, all replicas"),
        ("slot use", share(summary["slot_utilization"]), words.get("slot_utilization", "")),
        ("sequences per step, mean", number(batch["mean_scheduled"]), words.get("batch", "")),
        (
            "sequences per step, p50 / p99 / max",
            f"{number(batch['p50'])} / {number(batch['p99'])} / {number(batch['max'])}",
            "weighted by time",
        ),
        ("slots held, mean", number(batch["mean_running"]), "padding of static batches included"),
        (
            "waiting, mean / max",
            f"{number(queue['mean_waiting'])} / {number(queue['max_waiting'])}",
            words.get("queue", ""),
        ),
        ("GPU busy", share(summary["gpu_utilization"]), words.get("gpu_utilization", "")),
        ("engine busy", share(summary["busy_share"]), words.get("busy_share", "")),
        ("steps launched kernel by kernel", "not counted" if workers else number(spent["eager_steps"]),
         "launched in worker processes: part of the GPU's time here" if workers else "above the largest CUDA graph"),
        (
            "rows computed for nobody",
            number(spent["wasted_rows"]),
            "tokens of answers that had ended, in steps planned before that was seen",
        ),
        (
            "padding",
            f"{number(spent['pad_rows'])} rows, {number(spent['pad_tokens'])} prompt tokens",
            "computed by static batches beyond what was asked",
        ),
    ]


def memory_use(summary: dict[str, Any]) -> Rows:
    """How KV memory was used."""
    kv, counts = summary["kv"], summary["requests"]
    return [
        ("KV blocks", "differ", "from pool to pool") if "pools" in summary else (
            "KV blocks",
            f"{number(kv['num_gpu_blocks'])} of {number(kv['block_size'])} tokens",
            f"{number(kv['tokens_capacity'])} tokens per replica",
        ),
        (
            "in use, mean / peak",
            f"{share(kv['mean_use'])} / {share(kv['peak_use'])}",
            "of the blocks, weighted by time",
        ),
        ("internal fragmentation", share(kv["internal_fragmentation"]), "held but empty, of what is held"),
        (
            "external fragmentation",
            share(kv["external_fragmentation"]),
            "free but too scattered, of what is free",
        ),
        ("refused though enough was free", number(kv["refused_by_fragmentation"]), "contiguous memory only"),
        *_prefix_rows(kv["prefix_cache"]),
        (
            "preemptions",
            number(counts["preemptions"]),
            f"of {number(counts['preempted'])} requests, by {'swap' if 'swap' in kv else 'recomputation'}",
        ),
        *_swap_rows(kv.get("swap"), summary["time"]["copy_s"]),
    ]


def _prefix_rows(found: dict[str, Any]) -> Rows:
    """What the prefix cache saved, where there was one that found something."""
    if not found["found_tokens"]:
        return []
    rows = [("prompt tokens found in the prefix cache", share(found["hit_rate"]),
             f"{number(found['found_tokens'])} of {number(found['prompt_tokens'])}")]
    if "peak_blocks_shared" in found:
        rows.append(("blocks saved by sharing, peak", number(found["peak_blocks_shared"]),
                     "that running requests would hold more, did they share none"))
    host = found.get("host")
    if host:
        rows.append(("of them found in host memory", share(host["hit_rate"]),
                     f"of the prompt tokens; {number(host['blocks_loaded'])} blocks, link {seconds(host['link_s'])}"))
        rows.append(("host memory, peak", number(host["peak_blocks"]), f"of {number(host['blocks'])} blocks"))
    return rows


def _swap_rows(moved: dict[str, Any] | None, copy_s: float) -> Rows:
    """What preemption by swap moved."""
    if moved is None:
        return []
    return [("KV blocks to host memory / back", f"{number(moved['blocks_out'])} / {number(moved['blocks_in'])}",
             f"copied in {seconds(copy_s)} of GPU time"),
            ("host memory, peak", number(moved["peak_host_blocks"]), f"of {number(moved['host_blocks'])} blocks")]


def memory_rows(result: Result) -> dict[str, Any] | None:
    """Memory of one GPU part by part (GiB and share), None for the textbook GPU."""
    capacity = result.setup.capacity
    if capacity is None:
        return None
    parts = [(name, abs(size) / GIB, abs(size) / capacity.total_bytes) for name, size in capacity.rows()[1:]]
    kept = (
        "not for the engine",
        (capacity.total_bytes - capacity.usable_bytes) / GIB,
        1 - capacity.usable_bytes / capacity.total_bytes,
    )
    given = result.scenario.kv.num_gpu_blocks
    return {
        "parts": [kept, *parts],
        "total": capacity.total_bytes / GIB,
        "formula": capacity.equation(),
        "override": f"{given:,} blocks were set in the scenario instead" if given else "",
    }


def assumptions(result: Result) -> list[str]:
    """What this very run takes for granted."""
    scenario, setup, meta = result.scenario, result.setup, result.trace.meta
    lines = [
        f"Requests: {meta.source}, {several(len(result.trace), 'row')}"
        + (f" ({meta.account})" if meta.notable else "")
        + f"; seed {scenario.seed}, replication {result.replication}. One run: how much "
        "other random numbers would change is not in it (servecast load, capacity and plan replicate)."
    ]
    if setup.gpu.name == "unit":
        lines.append(f"Every step takes {seconds(textbook_step(result))}, whatever is in it.")
    else:
        lines.append(
            f"Step times: {scenario.cost_model} model; the GPU profile is marked {setup.gpu.mark}, the "
            f"engine profile {setup.engine.name} {setup.engine.version} is marked {setup.engine.mark}."
        )
        if setup.gpu.unverified:
            lines.append(f"Unverified numbers in the GPU profile: {', '.join(setup.gpu.unverified)}.")
        lines += _trust_lines(result.summary["trust"])
        lines += [sentence(line) for line in host_sentences(result.host_sensitivity)]
    lines.append(
        f"The engine plans {several(setup.limits.schedule_ahead, 'step')} ahead, before it has seen the output of the "
        f"one that runs. Longest request: {setup.limits.max_model_len:,} tokens."
    )
    if scenario.warmup_fraction:
        lines.append(
            f"The first {share(scenario.warmup_fraction)} of the requests count as warm-up and are left out "
            "of latencies."
        )
    if scenario.horizon_s:
        lines.append(f"The run was cut at {seconds(scenario.horizon_s)}.")
    return lines


def _trust_lines(known: dict[str, Any]) -> list[str]:
    """The model's own error as 90 % intervals, and what lies outside measurements."""
    labels = (("mean TTFT", "ttft_s.mean"), ("p99 TTFT", "ttft_s.p99"), ("mean TPOT", "tpot_s.mean"),
              ("mean E2E", "e2e_s.mean"))
    ranges = [
        f"{label} {seconds(low)} to {seconds(high)}"
        for label, key in labels
        for low, high in ([known["interval_90"][key]] if key in known["interval_90"] else [])
    ]
    lines = [f"90 % interval for the model's error ({known['mark']}): {', '.join(ranges)}."] if ranges else []
    return lines + [f"Not measured: {line}." for line in known["extrapolated"]]


def components(result: Result) -> list[tuple[str, ...]]:
    """Measured parts of the GPU profile: (name, value, mark, error, source)."""
    if result.scenario.cost_model == "roofline":
        return []
    rows: list[tuple[str, ...]] = []
    for name, entry in result.setup.gpu.measured.items():
        if not isinstance(entry, dict):
            continue
        error = entry.get("error_pct")
        rows.append(
            (
                name.replace("_", " "),
                _value(entry),
                str(entry.get("mark", "")),
                "—" if error is None else f"{error:.3g} %",
                str(entry.get("source", "")),
            )
        )
    return rows


def _value(entry: dict[str, Any]) -> str:
    """Value and unit of a profile entry; a curve as the number of its points."""
    if isinstance(entry.get("value"), int | float):
        unit = str(entry.get("unit", ""))
        return f"{entry['value']:.4g} {'' if unit == '1' else unit}".rstrip()
    return f"{several(len(entry['points']), 'point')}" if entry.get("points") else "—"


def engine_rows(result: Result) -> list[tuple[str, str, str]]:
    """(name, mark, source) of every number in the engine profile."""
    engine = result.setup.engine
    return [(name.replace("_", " "), engine.marks[name], engine.sources[name]) for name in engine.sources]


def not_modelled() -> list[str]:
    """What the simulator leaves out; docs/scenarios.md says more."""
    return [
        "Network between client and server, beyond the measured front-end latency of the engine.",
        "LoRA adapters that are loaded in turn, pipeline stages over a network, structured output, images.",
        "Prefix hits that the trace does not show: requests without sessions, hashes or cached tokens share nothing.",
        "Start-up, model loading, failures, restarts; clocks and temperature of the GPU; other tenants.",
        "The text itself: output lengths are those of the trace and do not depend on the policy.",
    ]
