"""Planted bugs outside the engines: setting up, planner, what-if, sweep, reports, page, calibration, workloads."""

from mutation.bug import Bug

SETUP, WHATIF, PRICE = "simulator/scenario/setup.py", "simulator/planning/whatif.py", "simulator/planning/price.py"
MEASURE, STATS = "simulator/planning/measure.py", "simulator/planning/statistics.py"
TRAFFIC, BOUNDS, LOSS = "simulator/planning/traffic.py", "simulator/planning/bounds.py", "simulator/planning/loss.py"
SAMPLES, SLO, STEADY = "simulator/metrics/samples.py", "simulator/planning/slo.py", "simulator/metrics/stability.py"
SHOW, ROW, COMPARED = "simulator/sweep/show.py", "simulator/sweep/row.py", "simulator/report/compared.py"
CHROME, DEPLOY, PAGE = "simulator/report/chrome_trace.py", "simulator/report/plan/deploy.py", "simulator/ui/model.py"
TRANSFORM, PARSE, ROWS = (f"simulator/workload/{name}.py" for name in ("transform", "parse", "rows"))
LENGTHS, ARRIVALS, DIURNAL = (f"simulator/workload/{name}.py" for name in ("lengths", "arrivals", "diurnal"))
SHARED, INSPECT, FIT = "simulator/workload/shared.py", "simulator/workload/inspect.py", "calibration/fit.py"

OTHER_LIMITS, WAYS = "simulator/planning/batch_limits.py", "simulator/planning/ways.py"
OTHER_FLEETS, OTHER_ENGINES = "simulator/planning/alternatives.py", "simulator/report/plan/engines.py"

LIMITS_TRIED, EFFORT = ("tests/plan/test_batch_limits.py",), ("tests/plan/test_search_effort.py",)
BUYING = ("tests/plan/test_purchases.py",)
UNLIKE = ("tests/plan/test_beside.py",)
FLEETS_BESIDE = ("tests/plan/test_alternatives.py",)
LIMITS = ("tests/unit/test_default_limits.py",)
LEVELS = ("tests/plan/test_plan_levels.py",)
BY_HAND = ("tests/plan/test_plan_by_hand.py",)
WHATIFS = ("tests/plan/test_plan_by_hand.py", "tests/plan/test_whatif.py")
SWEPT = ("tests/sweep/test_sweep_show.py", "-k", "not command_line")
REPORTS = ("tests/unit/test_report.py", "tests/unit/test_output.py", "tests/unit/test_timeline.py")
KUBERNETES = ("tests/plan/test_deploy.py",)
SLIDERS = ("tests/plan/test_ui.py", "tests/plan/test_plan_levels.py")
TRACES = ("tests/unit/test_workload_trace.py", "tests/unit/test_workload_readers.py",
          "tests/unit/test_workload_refusals.py")
DRAWN = ("tests/unit/test_workload_generated.py",)
QUANTISED = ("tests/calibration/test_quantised.py",)
FITTED = ("tests/calibration/test_fit.py", "-k", "shipped_engine or operators_alone or writing or per_cent")

BUGS = (
    Bug("paged block not kept back", SETUP, "else blocks - 1", "else blocks", LIMITS),
    Bug("watermark rounded up", SETUP, "int(watermark * blocks)", "-int(-(watermark * blocks) // 1)", LIMITS),
    Bug("v0 budget without its floor", SETUP, "max(length, 2048)", "max(length, 1)", LIMITS),
    Bug("closed clients submit by arrival", "simulator/scenario/job.py",
        "np.argsort(trace.id, kind", "np.argsort(trace.arrival_ns, kind",
        ("tests/unit/test_engine_rules.py", "-k", "order_of_id")),
    Bug("one captured graph size too many", "simulator/profiles/engine.py",
        "return [size for size in sizes if size <= limit]", "return [*sizes, limit + 16]",
        ("tests/unit/test_roofline.py",)),
    Bug("head computed on padded rows", "simulator/cost/device.py", "total + self.head_s(real) +",
        "total + self.head_s(rows) +", ("tests/calibration/test_cost.py",)),
    Bug("4-bit products at the pace of 16-bit ones", "simulator/cost/device.py",
        "(self.times.four_bits, 1.0) if self.four_bits", "(self.times.gemm, 1.0) if self.four_bits", QUANTISED),
    Bug("Marlin at half the rate on every GPU", "simulator/cost/gpu_times.py",
        "if 0 < gpu.compute_capability < MACHETE:", "if gpu.compute_capability < 0:", QUANTISED),
    Bug("tile classes cost every layer alike", "simulator/cost/device.py", "weights / TILED_WEIGHTS * (np.interp",
        "1.0 * (np.interp", QUANTISED),
    Bug("quantised weights launched as 16 bits", "simulator/cost/launch.py", "dense *= times.eager_quantised",
        "dense *= 1.0", QUANTISED),
    Bug("a step's reach without whole blocks", "simulator/cost/reach.py",
        "-(-lim.max_num_batched_tokens // lim.block_size) * lim.block_size", "lim.max_num_batched_tokens",
        ("tests/unit/test_reach.py", "-k", "by_hand")),
    Bug("planner's warm-up rounded up", STATS, "int(spec.warmup_fraction * len(trace))",
        "int(np.ceil(spec.warmup_fraction * len(trace)))", (*LEVELS, "-k", "cannot_answer")),
    # planner
    Bug("never answered counts as good", MEASURE, 'found = np.isfinite(times["e2e"])',
        'found = times["e2e"] > 0', BY_HAND),
    Bug("each class is held to the limits of all", MEASURE, "every = every & (met(limits)",
        "every = every | (met(limits)", ("tests/plan/test_budget.py", "-k", "gaps")),
    Bug("blocks known further break what follows", WAYS, "[now.get(block, block) for block in own]",
        "[now.get(block, block) if k >= known else block for k, block in enumerate(own)]", FLEETS_BESIDE),
    Bug("rate of n requests over n - 1 gaps", MEASURE, "(len(trace) - 1) / span", "len(trace) / span", BY_HAND),
    Bug("KV use in thousands", MEASURE, "float(total.blocks) * 1024", "float(total.blocks) * 1000", BY_HAND),
    Bug("month of thirty days", PRICE, "HOURS_PER_MONTH: Final = 730.0", "HOURS_PER_MONTH: Final = 720.0", BY_HAND),
    Bug("replicas for GPUs in the ranking", PRICE, '"min_gpus": float(fleet.gpus)',
        '"min_gpus": float(fleet.replicas)', BY_HAND),
    Bug("bound on cost without spares", PRICE, "replicas = bound + spec.survive", "replicas = bound", BY_HAND),
    Bug("bound counts cached prompts", BOUNDS, "(trace.prompt - trace.cached)[served]", "trace.prompt[served]",
        BY_HAND),
    Bug("relief gives no memory", BOUNDS, "int(limits.num_blocks * RELIEF)", "limits.num_blocks", BY_HAND),
    Bug("scaled steps, unscaled CPU", BOUNDS, '"crowded", "pause_ns")', '"crowded", "cpu_ns")',
        BY_HAND),
    Bug("a lost replica never had its requests", LOSS, "turn % (left + gone), turn % left)",
        "turn % left, turn % left)", LEVELS),
    Bug("a restarted request counts from its restart", LOSS, '0.0 if m == "tpot" else late', "0.0", LEVELS),
    Bug("mean rate by n", TRAFFIC, "(len(trace) - 1) * NS_PER_S / trace.span_ns",
        "len(trace) * NS_PER_S / trace.span_ns", BY_HAND),
    Bug("all replicas get the first one's share", TRAFFIC, "np.arange(index, len(trace), replicas)",
        "np.arange(0, len(trace), replicas)", BY_HAND),
    Bug("busiest hour is a mean hour", TRAFFIC, "float(counts.max()) / 3600", "float(counts.mean()) / 3600", BY_HAND),
    Bug("laxest of two limits", SLO, "limits[target.metric] = min(target.max_s",
        "limits[target.metric] = max(target.max_s", BY_HAND),
    Bug("one-sided count of requests", SAMPLES, "math.log((1 - level) / 2)", "math.log(1 - level)",
        ("tests/unit/test_samples.py",)),
    Bug("windows do not overlap", SAMPLES, "window_s / 2, window_s / 2)", "window_s / 2, window_s)",
        ("tests/unit/test_samples.py",)),
    Bug("interval of a run from independent values", SAMPLES,
        "max(float(steps @ steps) / 2 / steps.size / below.size, share * (1 - share) / count)",
        "share * (1 - share) / count", ("tests/unit/test_samples.py",)),
    # what-if
    Bug("change is base over changed", WHATIF, "paired(np.log(a), np.log(b), level)",
        "paired(np.log(b), np.log(a), level)", WHATIFS),
    Bug("lost replicas are those that are left", WHATIF, 'changes["cluster.replicas"] = left',
        'changes["cluster.replicas"] = overlay.lose_replicas', BY_HAND),
    Bug("points are shares", WHATIF, "paired(100 * np.asarray(a), 100 * np.asarray(b), level)",
        "paired(np.asarray(a), np.asarray(b), level)", WHATIFS),
    Bug("cached beyond a shorter prompt", TRANSFORM, "freeze(np.minimum(trace.cached, prompt))", "trace.cached",
        BY_HAND),
    Bug("throughput from time zero", WHATIF, " - trace.arrival_ns[0]) / 1e9", ") / 1e9", WHATIFS),
    Bug("traffic divides", WHATIF, "at_rate(trace, overlay.traffic)", "at_rate(trace, 1 / overlay.traffic)", BY_HAND),
    # sweep
    Bug("mean of the replications that worked", SHOW, ".where(values.count() == groups.size())", "", SWEPT),
    Bug("fewer completed is better", ROW, '("throughput.", "goodput.", "requests.completed")',
        '("throughput.", "goodput.")', SWEPT),
    Bug("best of the verdicts", SHOW, 'groupby(frame["point"], sort=True).max()',
        'groupby(frame["point"], sort=True).min()', SWEPT),
    Bug("points without a mean come first", SHOW, 'na_position="last"', 'na_position="first"', SWEPT),
    Bug("logarithmic draws are uniform", "simulator/sweep/spec.py",
        "np.exp(rng.uniform(math.log(low), math.log(high), count))", "rng.uniform(low, high, count)",
        ("tests/sweep/test_sweep_spec.py",)),
    # reports
    Bug("the worst is starred", COMPARED, "best = max(known", "best = min(known", REPORTS),
    Bug("a star by chance", "simulator/metrics/apart.py", "np.all(sign * a > sign * b)", "np.any(sign * a > sign * b)",
        ("tests/unit/test_apart.py",)),
    Bug("ratio upside down", COMPARED, "times(value / base)", "times(base / value)", REPORTS),
    Bug("best mean over fewer answers", COMPARED, "[count == max(done) for count in done]", "[True for count in done]",
        REPORTS),
    Bug("trace in milliseconds", CHROME, "tick / 1000", "tick / 1_000_000", REPORTS),
    Bug("steps drawn from when they were planned", CHROME, '"ts": _us(row["end"] - row["wall_ns"]),\n            "dur"',
        '"ts": _us(row["start"]),\n            "dur"', REPORTS),
    Bug("spares are not deployed", DEPLOY, "labels, fleet.replicas, fleet", "labels, fleet.serving, fleet",
        KUBERNETES),
    Bug("GPUs of the fleet for each pod", DEPLOY, "fleet.replicas, fleet.candidate.gpus)",
        "fleet.replicas, fleet.gpus)", KUBERNETES),
    # page
    Bug("one replica gets all the traffic", PAGE, "s.scenario(rate / s.replicas,", "s.scenario(rate,", SLIDERS),
    Bug("all the traffic is shared for one replica", PAGE, "s.plain(s.rate / s.replicas,", "s.plain(s.rate,", SLIDERS),
    # plans: other limits, other fleets, other inputs
    Bug("steps go on that do not help", OTHER_LIMITS, "if _worst(judged) > best * BETTER:", "if False:", LIMITS_TRIED),
    Bug("one stage of a pipeline is paid for", "simulator/planning/candidate.py",
        "return self.tensor_parallel * self.pipeline_parallel", "return self.tensor_parallel",
        ("tests/plan/test_pipelines.py",)),
    Bug("stages hand over between pools", "simulator/scenario/handover.py", "if lim.stages:", "if False:",
        ("tests/plan/test_pipelines.py",)),
    Bug("others beside are for nothing", PRICE, "own + other.usd_per_hour * candidate.beside.gpus", "own", UNLIKE),
    Bug("others beside are bought twice", "simulator/planning/spec.py", "n + others for n in counts",
        "n for n in counts", UNLIKE),
    Bug("unlike steps err alike", "simulator/planning/points.py", "error.relative / most for", "1.0 for", UNLIKE),
    Bug("others beside are left out of the key", "simulator/planning/points.py",
        "                **_of_pools(setup),\n", "", UNLIKE),
    Bug("others beside get the cheapest requests", BOUNDS, "np.argsort(-own / np", "np.argsort(own / np", UNLIKE),
    Bug("unlike replicas in turn", "simulator/planning/unlike.py", "if blind is not None:", "if False:", UNLIKE),
    Bug("the host of one pool", WAYS, "{name: changed_setup(pool, way) for name, pool in setup.pools.items()}",
        "setup.pools", UNLIKE),
    Bug("peaks over the first pool's blocks", MEASURE, "if BESIDE in result.setup.pools:", "if False:", UNLIKE),
    Bug("reserved replicas are for nothing", "simulator/planning/mix.py", "count * reserved * len(hours) + more",
        "more", BUYING),
    Bug("reserved ones save no hour", "simulator/planning/mix.py", "max(0, pair[0] - count) * on_demand + pair[1]",
        "pair[0] * on_demand + pair[1]", BUYING),
    Bug("any share of an hour on spot capacity", "simulator/planning/purchases.py", "share / (1 - share) * owned",
        "least", BUYING),
    Bug("spot replicas that nobody takes back", "simulator/planning/purchases.py", "way=(SPOT, float(lent))",
        "way=None", BUYING),
    Bug("spot replicas at the full price", OTHER_FLEETS, "lent * spot_price * each", "lent * own", FLEETS_BESIDE),
    Bug("more spot replicas than the share", OTHER_FLEETS, "math.floor(share * size + 1e-9)", "size", FLEETS_BESIDE),
    Bug("hours of all replicas there may be", MEASURE, '"replica_hours": paid / HOUR_NS',
        '"replica_hours": span * len(result.totals) / HOUR_NS', FLEETS_BESIDE),
    Bug("gaps stay as they are", WAYS, "wanted = factor * variation(gaps)", "wanted = variation(gaps)", FLEETS_BESIDE),
    Bug("the day's curve is bent too", WAYS, "bent * (sums /", "bent * (gaps.sum() / count /", FLEETS_BESIDE),
    Bug("requests left out are left out of levels", MEASURE, "np.concatenate([column, np.zeros(beside.requests)])",
        "column", EFFORT),
    Bug("prefill and decode of SGLang apart", OTHER_ENGINES, '        "--enable-mixed-chunk",\n', "", KUBERNETES),
    Bug("one replica is paid for", PAGE, "hourly = price * s.replicas", "hourly = price", SLIDERS),
    Bug("milliseconds for seconds in the curve", PAGE, "1e5 * value / limit", "100 * value / limit", SLIDERS),
    # workloads
    Bug("the end of a window is inside", TRANSFORM, '[begin, end], side="left")', '[begin, end], side="right")',
        TRACES),
    Bug("a faster trace is slower", TRANSFORM, "(trace.arrival_ns - first) / factor",
        "(trace.arrival_ns - first) * factor", TRACES),
    Bug("copies share an id", TRANSFORM, "int(trace.id.max()) + 1", "int(trace.id.max())", TRACES),
    Bug("times cut down", PARSE, "return np.rint(np.where(bad, 0.0, ns))", "return np.floor(np.where(bad, 0.0, ns))",
        TRACES),
    Bug("two requests at one time are out of order", ROWS, "back = arrival[rows] < before",
        "back = arrival[rows] <= before", TRACES),
    Bug("rate of the fullest minute by seconds", INSPECT, ".max()) / 60", ".max())", TRACES),
    Bug("a prompt that leaves no room fits", INSPECT, "(trace.prompt >= max_model_len)",
        "(trace.prompt > max_model_len)", TRACES),
    Bug("lognormal of too small a mean", LENGTHS, "- variance / 2, variance**0.5", "- variance, variance**0.5", DRAWN),
    Bug("uniform never draws its maximum", LENGTHS, "endpoint=True", "endpoint=False", DRAWN),
    Bug("gamma gaps of the wrong spread", ARRIVALS, "1 / (arrivals.cv or 1.0) ** 2", "1 / (arrivals.cv or 1.0)", DRAWN),
    Bug("the day peaks at night", DIURNAL, "edges / period_s - peak_hour", "edges / period_s + peak_hour", DRAWN),
    Bug("a block is named by the hash it begins in", SHARED, "((within + 1) * block_size - 1) // extras.hash_block",
        "(within * block_size) // extras.hash_block", ("tests/prefix/test_shared.py",)),
    Bug("the last token is shared", SHARED, "(trace.prompt + trace.output - 1) // block_size",
        "(trace.prompt + trace.output) // block_size", ("tests/prefix/test_shared.py",)),
    Bug("a system prompt reaches a block further", SHARED, "(tokens // block_size)[owner]",
        "(tokens // block_size + 1)[owner]", ("tests/prefix/test_shared.py",)),
    Bug("answers leave no trace in the cache", "simulator/metrics/reuse.py", "newer.add(at, int(used[i]))",
        "newer.add(at, int(asked[i]))", ("tests/prefix/test_reuse.py",)),
    # policies of named engines
    Bug("what may be asked for is not reserved", "policies/trtllm.py", "req.prompt[i] + req.limit[i] if",
        "req.prompt[i] + req.output[i] if", ("tests/policies/test_trtllm.py",)),
    Bug("a second interruption without a decode", "policies/tgi.py", "aux[DECODES_NEXT] = 1 if running > 0 else 0",
        "aux[DECODES_NEXT] = 0", ("tests/policies/test_tgi.py",)),
    Bug("the pace forgets the memory that is read", "simulator/scenario/pace.py", "lim.block_size)) * lim.block_size",
        "lim.block_size))", ("tests/policies/test_sarathi.py",)),
    Bug("copies to the host are kept in the wrong order", "simulator/offload.py", "for j in range(count - 1, -1, -1):",
        "for j in range(count):", ("tests/prefix/test_offload.py",)),
    Bug("a block on its way is copied twice", "simulator/offload.py", "if lands > rep.c.now:", "if lands < 0:",
        ("tests/prefix/test_offload.py",)),
    Bug("answers leave nothing in host memory", "simulator/prefix.py", "keep_private(rep, lim, private)",
        "keep_private(rep, lim, 0)", ("tests/prefix/test_offload.py",)),
    Bug("part of a prompt is taken in", "policies/splitfuse.py", "if not fits(req, rep, lim, i, whole, 0) or not grow",
        "if not grow", ("tests/policies/test_splitfuse.py",)),
    Bug("quanta do not grow", "policies/fastserve.py", "lim.quantum << req.level[i]", "lim.quantum",
        ("tests/policies/test_fastserve.py",)),
    Bug("copies ahead of need delay the step", "policies/fastserve.py", "rep.c.n_running - 1, 0)",
        "rep.c.n_running - 1, lim.swap_ns)", ("tests/policies/test_fastserve.py",)),
    Bug("long prompts join at the top", "simulator/scenario/asks.py", "levels[k] < DEEPEST", "levels[k] < 0",
        ("tests/policies/test_fastserve.py",)),
    Bug("copies back from the host take no time", "policies/swap.py",
        "rep.c.copy_ns += req.swapped[i] * copy_ns", "rep.c.copy_ns += 0", ("tests/unit/test_engine_rules.py",)),
    # steady state
    Bug("rate of those who ended", STEADY, "rate = arrivals.size / seconds", "rate = done.sum() / seconds",
        ("tests/unit/test_steady.py",)),
    Bug("MSER without its square", STEADY, "/ left.astype(np.float64) ** 2", "/ left.astype(np.float64)",
        ("tests/unit/test_steady.py",)),
    # calibration
    Bug("stalls of early steps", FIT, "float((-late.error * late.gap_s).mean())",
        "float((late.error * late.gap_s).mean())", FITTED),
    Bug("host times in microseconds", FIT, "round(value * 1e3, 4)", "round(value * 1e6, 4)", FITTED),
    Bug("errors as shares", FIT, "round(100 * float(error), 2)", "round(float(error), 2)", FITTED),
    Bug("workspace in MiB", FIT, "fit.memory.workspace_bytes / 2**30", "fit.memory.workspace_bytes / 2**20", FITTED),
    Bug("errors cancel", "calibration/validate.py", 'abs(entry["metrics"][name]["error_pct"])',
        'entry["metrics"][name]["error_pct"]', ("tests/calibration/test_validate.py",)),
)  # fmt: skip
