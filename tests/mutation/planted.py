"""Planted bugs: (name, file, old text, new text, tests that must fail). `mutate.py` tries them one by one.

Not here because nothing can show it: the bound of an eager step's GPU end by its launch. The next step is never
planned, and no output collected, before that launch is done, so the bound follows from the loop itself.
"""

from typing import NamedTuple

ORACLE = ("tests/oracle", "-k", "reference")
"""The SimPy engine against the oracle: nothing to compile."""
LONG = ("tests/parity", "-k", "long_answers and chunked")
"""Compiled against SimPy on long answers: one policy to compile."""
PARITY = ("tests/parity/test_parity.py", "-m", "not nightly")
LONG_V0 = ("tests/parity", "-k", "long_answers and vllm_v0")
RULES = ("tests/unit/test_engine_rules.py", "-k", "reference")
PADDING = ("tests/unit/test_engine_rules.py", "-k", "static_padding")
"""Compiled too: one policy to compile."""
RULES_ALL = ("tests/unit/test_engine_rules.py", "-k", "share_of_all_blocks")
HORIZON = ("tests/unit/test_engine_rules.py", "-k", "after_the_horizon")
KV = ("tests/unit/test_kv.py",)
POOL = ("tests/prefix/test_prefix.py",)
"""The prefix cache against a pool of single blocks."""
REACH = ("tests/unit/test_reach.py", "-k", "not slow_gpus")
SCHEDULER = ("tests/scheduler",)
"""Against what vLLM's own scheduler decided."""
SLOW = ("tests/parity/test_slow_gpus.py",)
QUEUES = ("tests/unit/test_queues.py",)
HEAP = ("tests/policies/test_heap.py",)
KEYS = ("tests/policies/test_by_key.py",)


READINGS = ("tests/unit/test_readings.py",)
LEVELS = ("tests/plan/test_plan_levels.py", "-k", "at_the_limit or cut_down or without_data")
"""Service levels by hand on SimPy: nothing to compile."""


class Bug(NamedTuple):
    """One edit that some test must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


KV_FILE, CHUNKED, V0, STATIC = "simulator/kv.py", "policies/chunked.py", "policies/vllm_v0.py", "policies/static.py"
QUEUE_FILE, PREFIX, BOOKING = "policies/queues.py", "simulator/prefix.py", "simulator/engines/booking.py"
LANE, QUIET = "simulator/engines/lane.py", "simulator/engines/quiet.py"
FAST, STEP, STATE = "simulator/engines/fast.py", "simulator/cost/step.py", "simulator/state.py"
WATERMARK = "keep_free = lim.watermark_blocks if held(rep) > 0 else 0"
BUGS = (
    Bug("blocks rounded up when full", KV_FILE, "(tokens + block_size - 1) // block_size",
        "tokens // block_size + 1", KV),
    Bug("blocks rounded down", KV_FILE, "(tokens + block_size - 1) // block_size", "tokens // block_size", KV),
    Bug("blocks rounded up when full, oracle", KV_FILE, "(tokens + block_size - 1) // block_size",
        "tokens // block_size + 1", ORACLE),
    Bug("double free", KV_FILE, "    req.blocks[i] = 0\n    if lim.contiguous == 1:\n        kept = 0",
        "    if lim.contiguous == 1:\n        kept = 0", KV),
    Bug("watermark kept when growing back", KV_FILE, "if more > rep.c.free_blocks - keep_free:",
        "if more > rep.c.free_blocks:", KV),
    Bug("first fit needs a larger hole", KV_FILE, ">= size:", "> size:", KV),
    Bug("extent placed twice", KV_FILE, "    if more <= 0:\n        return True\n", "", KV),
    Bug("watermark ignored, chunked", CHUNKED, WATERMARK, "keep_free = 0", RULES),
    Bug("watermark ignored, vllm_v0", V0, "keep_free = lim.watermark_blocks", "keep_free = 0", RULES),
    Bug("vllm_v0 decodes into its last block", V0, "or rep.c.free_blocks > 0", "or rep.c.free_blocks >= 0", RULES),
    Bug("vllm_v0 stands still after preempting itself", V0, "if held(rep) == 0:  #", "if False:  #", RULES),
    Bug("vllm_v0 keeps out who outgrew the watermark", V0, "            keep_free = 0\n", "            pass\n", RULES),
    Bug("vllm_v0 decision held beyond the free blocks", V0, "max(rep.c.free_blocks - 1, 0)",
        "rep.c.free_blocks + rep.c.n_batch", LONG_V0),
    Bug("a prompt that leaves no watermark waits", BOOKING, "> lim.num_blocks - lim.watermark_blocks:",
        "> lim.num_blocks:", RULES),
    Bug("watermark of the usable blocks", "simulator/scenario/setup.py", "int(watermark * blocks)",
        "int(watermark * usable)", RULES_ALL),
    Bug("cached tokens by the token", PREFIX,
        "whole - 1) // lim.block_size * lim.block_size", "whole - 1)", RULES),
    Bug("a prompt wholly found in the cache", PREFIX, "min(req.cached[i], whole - 1)",
        "req.cached[i]", RULES),
    Bug("watermark holds on an empty replica", CHUNKED, WATERMARK, "keep_free = lim.watermark_blocks", ORACLE),
    Bug("token budget off by one", CHUNKED, "return min(tokens, budget)", "return min(tokens, budget + 1)", RULES),
    Bug("token budget not spent on the running", CHUNKED,
        "                budget -= tokens\n            k += 1", "            k += 1", RULES),
    Bug("prefill threshold ignored", CHUNKED, "tokens = lim.long_prefill_token_threshold", "tokens = tokens", RULES),
    Bug("whole prompt not reserved", CHUNKED, "lim.reserve_prompt == 1 and", "lim.reserve_prompt == 2 and", RULES),
    Bug("admits after preempting", CHUNKED, "if not preempted:", "if preempted or not preempted:", RULES),
    Bug("slots off by one", CHUNKED, "held(rep) < lim.max_num_seqs", "held(rep) + 1 < lim.max_num_seqs",
        ORACLE),
    Bug("cached tokens computed again", CHUNKED, "start = find(req, rep, lim, i, whole)", "start = 0", ORACLE),
    Bug("prompts above the budget in one step", V0, "if whole - start > budget and rep.c.n_batch > 0:",
        "if whole - start > budget + 1 and rep.c.n_batch > 0:", RULES),
    Bug("prefix: freed from the first block to the last", PREFIX, "for j in range(shared - 1, -1, -1):",
        "for j in range(shared):", POOL),
    Bug("prefix: freed from the first block to the last, real scheduler", PREFIX, "for j in range(shared - 1, -1, -1):",
        "for j in range(shared):", SCHEDULER),
    Bug("prefix: blocks never filled are kept", PREFIX, "full = min(tokens // lim.block_size, req.blocks[i])",
        "full = req.blocks[i]", POOL),
    Bug("prefix: blocks never filled are kept, whole runs", PREFIX,
        "full = min(tokens // lim.block_size, req.blocks[i])", "full = req.blocks[i]", ORACLE),
    Bug("prefix: the last token is not computed", PREFIX, "most = (whole - 1) // lim.block_size",
        "most = whole // lim.block_size", POOL),
    Bug("prefix: the last token is not computed, real scheduler", PREFIX, "most = (whole - 1) // lim.block_size",
        "most = whole // lim.block_size", SCHEDULER),
    Bug("prefix: of twins the newer is found", PREFIX, """            while rep.prefix.nodes[first].twin >= 0:
                first = rep.prefix.nodes[first].twin
            rep.prefix.nodes[first].twin = at
""", """            node.twin = first
            rep.prefix.found[number] = at
""", POOL),
    Bug("prefix: no twin stands in for a block that is taken", PREFIX, "rep.prefix.found[number] = twin",
        "rep.prefix.found[number] = -1", POOL),
    Bug("prefix: idle blocks found are not counted at admission", PREFIX,
        "return hits - idle_blocks(req, rep, i, hits)", "return hits", SCHEDULER),
    Bug("prefix: blocks that others hold are counted at admission", PREFIX,
        "return hits - idle_blocks(req, rep, i, hits)", "return 0", SCHEDULER),
    Bug("prefix: blocks others hold are counted idle", PREFIX, ".refs == 0:\n            idle += 1",
        ".refs >= 0:\n            idle += 1", POOL),
    Bug("prefix: private blocks counted as held by others", PREFIX, "idle = hits - shared", "idle = 0", POOL),
    Bug("prefix: a block in use is freed by the first who ends", PREFIX,
        "node.refs -= 1\n        if node.refs == 0:", "node.refs -= 1\n        if True:", POOL),
    Bug("prefix: outputs in flight are known", PREFIX, "min(tokens, req.prompt[i] + req.done[i])", "tokens", SCHEDULER),
    Bug("prefix: answers are forgotten", PREFIX, "    learn(req, rep, lim, i, tokens)\n    full = min(",
        "    learn(req, rep, lim, i, min(tokens, req.prompt[i]))\n    full = min(", ORACLE),
    Bug("prefix: a preempted request does not find its own blocks", PREFIX, "req.settled[i], True)",
        "req.settled[i], False)", SCHEDULER),
    Bug("prefix: taken blocks are not forgotten", PREFIX, "            _forget(rep, at)\n", "", POOL),
    Bug("prefix: the newest free block is taken first", PREFIX, "at = rep.c.oldest\n        node",
        "at = rep.c.newest\n        node", POOL),
    Bug("prefix: hits of a preempted request counted again", PREFIX,
        "    if req.preempted[i] == 0:\n", "    if True:\n", SCHEDULER),
    Bug("static padded for whom it leaves out", STATIC, "        longest, limit = padded, asked\n", "", ORACLE),
    Bug("static batch full of another bucket", STATIC, "if lim.length_bucket == 0:\n        return int",
        "if lim.length_bucket >= 0:\n        return int", RULES),
    Bug("static slots not held to the end", STATIC, "rep.c.pad_rows = held(rep) - rows",
        "rep.c.pad_rows = 0", ("tests/golden", "-k", "reference")),
    Bug("static rows ended read their context, fastertransformer", STATIC,
        "wide = held(rep) if lim.padding == NAIVE else rows", "wide = held(rep)", RULES),
    Bug("static prompts padded all the same", STATIC, "if lim.padding == NAIVE:", "if lim.padding != REMOVED:", RULES),
    Bug("static leaps over growing padding", STATIC, "            rep.c.hold = 0  #", "            pass  #", PADDING),
    Bug("static clients go on before their answer", STATIC, "            rep.c.n_ended = 0\n",
        "            rep.c.n_ended += 0\n", RULES),
    Bug("admission order reversed", QUEUE_FILE, "        push_back(req, rep, i)\n", "        push_front(req, rep, i)\n",
        ORACLE),
    Bug("preempted goes to the back", QUEUE_FILE, "        push_front(req, rep, i)\n",
        "        push_back(req, rep, i)\n", QUEUES),
    Bug("preempts the first", QUEUE_FILE, "return preempt(req, rep, lim, rep.c.n_running - 1)",
        "return preempt(req, rep, lim, 0)", QUEUES),
    Bug("the heap forgets a child", "policies/heap.py", "            left = req.next[other]\n",
        "            left = -1\n", HEAP),
    Bug("of equal keys the newer goes first", "policies/heap.py", "and i < j)", "and i > j)", HEAP),
    Bug("who left the queue is taken all the same", "policies/heap.py",
        "    _clear_head(req, rep)\n    rep.c.n_waiting", "    rep.c.n_waiting", HEAP),
    Bug("the planned tokens of a victim stay spent", CHUNKED, "budget += back", "budget += 0", KEYS),
    Bug("a victim planned before leaves a gap", CHUNKED, "                        k -= 1\n",
        "                        k -= 0\n", SCHEDULER),
    Bug("stands still after preempting itself", CHUNKED, "again = preempted and", "again = False and", SCHEDULER),
    Bug("the smallest key is preempted", QUEUE_FILE, "if heap.before(req, rep.running[worst], rep.running[k]):",
        "if heap.before(req, rep.running[k], rep.running[worst]):", SCHEDULER),
    Bug("aging counts for nothing", "policies/priority.py", "lim.aging + req.queued[i])", "lim.aging)", KEYS),
    Bug("the last output of who ended is not known", PREFIX, "req.prompt[i] + req.done[i] - 1, False)",
        "req.settled[i], False)", SCHEDULER),
    Bug("preemption drops tokens in flight", QUEUE_FILE, "    req.computed[i] = 0\n",
        "    req.computed[i] = 0\n    req.planned[i] = req.done[i]\n", ORACLE),
    Bug("output of a preempted request is dropped", BOOKING, "if req.status[i] > RUNNING:",
        "if req.status[i] != RUNNING:", RULES),
    Bug("ended by a token in flight but still waiting", BOOKING, "                take_out(req, rep, world.lim, i)\n",
        "                pass\n", RULES),
    Bug("preemption drops tokens in flight, real scheduler", QUEUE_FILE, "    req.computed[i] = 0\n",
        "    req.computed[i] = 0\n    req.planned[i] = req.done[i]\n", SCHEDULER),
    Bug("admits after preempting, real scheduler", CHUNKED, "if not preempted:", "if preempted or not preempted:",
        SCHEDULER),
    Bug("watermark holds on an empty replica, real scheduler", CHUNKED, WATERMARK, "keep_free = lim.watermark_blocks",
        SCHEDULER),
    Bug("preempts the first, real scheduler", QUEUE_FILE, "    return rep.c.n_running - 1\n", "    return 0\n",
        SCHEDULER),
    Bug("a token in flight counted at readmission", CHUNKED, "req.prompt[i] + req.done[i]",
        "req.prompt[i] + req.planned[i]", RULES),
    Bug("an output comes after the arrivals of its tick", STATE, "COMPLETE: Final = 0",
        "COMPLETE: Final = 3", RULES),
    Bug("an arrival misses the step of its tick", STATE, "ARRIVE: Final = 2", "ARRIVE: Final = 5", RULES),
    Bug("eager launches not counted", BOOKING, "stats.eager += launch(", "launch(", RULES),
    Bug("output seen before the next launch is done", BOOKING, ".gpu_end, rep.c.cpu_free, rep.c.now)",
        ".gpu_end, rep.c.now)", RULES),
    Bug("GPU starts before its inputs are there", BOOKING, "max(rep.c.gpu_free, ready) + gpu",
        "max(rep.c.gpu_free, now) + gpu", RULES),
    Bug("front end serves all at once", "simulator/engines/clients.py",
        "max(clients.free[at], tick) + cost", "tick + cost", RULES),
    Bug("a refusal is seen at once", "simulator/engines/reference.py", " + job.cost.frontend_out_ns)", ")", RULES),
    Bug("length limit off by one", BOOKING, "if final > lim.max_model_len:", "if final >= lim.max_model_len:", RULES),
    Bug("KV refusal off by one", BOOKING, "reservation(req, lim, i, final) > lim.num_blocks",
        "reservation(req, lim, i, final) >= lim.num_blocks", RULES),
    Bug("new token not counted in its context", BOOKING, "context += known", "context += known - 1", ORACLE),
    Bug("causal pairs without the diagonal", BOOKING, "(tokens * (tokens + 1)) >> 1", "(tokens * (tokens - 1)) >> 1",
        ORACLE),
    Bug("round robin by replica, not request", "policies/routers.py", "return i % replicas",
        "return (i + 1) % replicas", ORACLE),
    Bug("least outstanding breaks ties upward", "policies/routers.py",
        "fronts[r].outstanding < fronts[best].outstanding",
        "fronts[r].outstanding <= fronts[best].outstanding", ORACLE),
    Bug("ended requests stay outstanding", BOOKING, "rep.front.outstanding -= c.n_ended",
        "rep.front.outstanding -= 0", ORACLE),
    Bug("high half of a count forgotten", STEP, "(count >> FP_BITS) * part + ", "", REACH),
    Bug("carry between the low halves forgotten", STEP, "(upper + (lower >> 16)) >> 16", "upper >> 16", REACH),
    Bug("products of 64 bits only", STEP,
        "return count * whole + (count >> FP_BITS) * part + ((upper + (lower >> 16)) >> 16)",
        "return (((count >> 16) * coefficient_fp) >> 16) + (((count & 0xFFFF) * coefficient_fp) >> FP_BITS)", SLOW),
    Bug("reach without recomputed answers", "simulator/cost/reach.py", "min(prompt, lim.max_model_len) + answer",
        "min(prompt, lim.max_model_len)", REACH),
    Bug("reach counts real prompts only", "simulator/cost/reach.py", "else rows * whole", "else whole", REACH),
    Bug("sums over the run unchecked", "simulator/engines/job.py", ">= 2**63:", ">= 2**70:", REACH),
    Bug("counts wrap at int32", "simulator/engines/job.py", "<= LARGEST_COUNT:", "<= 2**40:", REACH),
    Bug("longer what-ifs wrap", "simulator/planning/whatif.py", "if longer.max() > MAX_TOKENS:", "if False:", REACH),
    Bug("slope beyond the table forgotten", STEP, " + scaled(tokens - last, cost.slope_fp)", "", ORACLE),
    Bug("a sequence leaves the lane one step late", LANE, "seat.end = c.lane_steps + left",
        "seat.end = c.lane_steps + left + 1", LONG),
    Bug("the lane crosses into a block one step late", LANE, "(seat.born + spare) %",
        "(seat.born + spare + 1) %", LONG),
    Bug("a spill keeps the blocks taken for no step", LANE, "    c.free_blocks += c.lane_took\n", "",
        LONG),
    Bug("spilled sequences go last", LANE, ".turn > seat.turn:", ".turn > 2**40:", LONG),
    Bug("tokens in flight are lost with the lane", LANE, "if step.lane_step >= born:",
        "if step.lane_step > born:", LONG),
    Bug("longest gap from the second token on", LANE, "rep.gap_step[middle] >= born:", "rep.gap_step[middle] > born:",
        LONG),
    Bug("a shorter gap hides a longer one", BOOKING, "rep.gap_ns[top - 1] <= gap:",
        "rep.gap_ns[top - 1] > gap:", LONG),
    Bug("the lane counts one gap for all", BOOKING, "world.itl[itl_bin(gap)] += step.lane",
        "world.itl[itl_bin(gap)] += 1", LONG),
    Bug("the lane's tokens are not spoken for", CHUNKED, "lim.max_num_batched_tokens - rep.c.lane",
        "lim.max_num_batched_tokens", PARITY),
    Bug("a quiet run collects the last output", QUIET, "        most -= 1  #", "        most -= 0  #", LONG),
    Bug("a quiet run takes blocks that are not there", QUIET, "if rep.phase[phase] > c.free_blocks:",
        "if rep.phase[phase] > c.free_blocks + 1:", LONG),
    Bug("a quiet run goes over an arrival", QUIET, "and c.now < limit and", "and c.now <= limit and", PARITY),
    Bug("a quiet run goes over the horizon", QUIET, "if front.event_tick > limit or front.event_tick > until:",
        "if front.event_tick > limit:", HORIZON),
    Bug("a quiet run counts one gap for all", QUIET, "world.itl[at_bin] += alike.rows", "world.itl[at_bin] += 1", LONG),
    Bug("a quiet run forgets eager launches", QUIET, "rep.stats.eager += alike.eager * launched",
        "rep.stats.eager += 0", PARITY),
    Bug("an output at an arrival's tick comes after it", FAST, "front.event_phase < ARRIVE",
        "front.event_phase < COMPLETE",        PARITY),
    Bug("planning at an arrival's tick comes before it", FAST, "front.event_phase < ARRIVE",
        "front.event_phase <= SCHEDULE",        PARITY),
    Bug("TPOT over n", "simulator/metrics/latency.py", "(req.last[rows] - req.first[rows]) / (req.done[rows] - 1)",
        "(req.last[rows] - req.first[rows]) / req.done[rows]", ("tests/unit/test_metrics.py",)),
    Bug("TTFT from the queue", "simulator/metrics/latency.py", "value = req.first[rows] - req.arrival[rows]",
        "value = req.first[rows] - req.queued[rows]", ("tests/unit/test_metrics.py",)),
    Bug("ITL rank not centred", "simulator/metrics/latency.py", "(ranks - before[at] + 0.5)", "(ranks - before[at])",
        READINGS),
    Bug("ITL top bin not cut at the largest gap", "simulator/metrics/latency.py",
        "np.minimum(edges[used + 1], largest)", "edges[used + 1]", READINGS),
    Bug("ITL bin off at powers of two", BOOKING, "((gap >> (octave - 1)) - (1 << ITL_BITS))",
        "((max(gap - 1, 1) >> (octave - 1)) - (1 << ITL_BITS))", READINGS),
    Bug("makespan from zero", "simulator/metrics/summary.py",
        " - int(result.requests.arrival[fate.arrived].min())", "", READINGS),
    Bug("spares not paid for", "simulator/planning/price.py", "hourly = each * (outcome.replicas + spec.survive)",
        "hourly = each * outcome.replicas", READINGS),
    Bug("watts for kilowatts", "simulator/planning/price.py", "watts / 1000 / output", "watts / output", READINGS),
    Bug("cost per million of all tokens", "simulator/planning/price.py", "        hourly / output,",
        "        hourly / total,", READINGS),
    Bug("cost per million ignores the output length", "simulator/ui/model.py", "s.rate * s.output * 3600 / 1e6",
        "s.rate * 3600 / 1e6", ("tests/plan/test_plan_levels.py", "-k", "page_prices")),
    Bug("warm-up rounded up", "simulator/metrics/latency.py",
        "measured[: int(scenario.warmup_fraction * np.count_nonzero(arrived))]",
        "measured[: int(np.ceil(scenario.warmup_fraction * np.count_nonzero(arrived)))]", LEVELS),
    Bug("at the limit counts as beyond, attainment", "simulator/planning/measure.py", "~(times[metric] > limit)",
        "~(times[metric] >= limit)", LEVELS),
    Bug("at the limit counts as beyond, interval", "simulator/metrics/intervals.py", "if self.high <= limit:",
        "if self.high < limit:", LEVELS),
    Bug("a level without data passes", "simulator/planning/statistics.py", "if np.isnan(values).any():", "if False:",
        LEVELS),
    Bug("variance of the backlog walk", "simulator/metrics/stability.py", "1.2 * 1.5 *", "1.2 *",
        ("tests/queueing/test_verdict.py", "-k", "walk")),
    Bug("compile cache blind to edits", "simulator/jit.py", "digest.update(path.read_bytes())",
        "digest.update(path.name.encode())", ("tests/unit/test_public_api.py", "-k", "hash")),
)  # fmt: skip
