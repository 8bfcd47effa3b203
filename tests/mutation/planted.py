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
RULES_ALL = ("tests/unit/test_engine_rules.py", "-k", "share_of_all_blocks")
HORIZON = ("tests/unit/test_engine_rules.py", "-k", "after_the_horizon")
KV = ("tests/unit/test_kv.py",)
REACH = ("tests/unit/test_reach.py", "-k", "not slow_gpus")
SCHEDULER = ("tests/scheduler",)
"""Against what vLLM's own scheduler decided."""
SLOW = ("tests/parity/test_slow_gpus.py",)
QUEUES = ("tests/unit/test_queues.py",)


class Bug(NamedTuple):
    """One edit that some test must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


KV_FILE, CHUNKED, V0, STATIC = "simulator/kv.py", "policies/chunked.py", "policies/vllm_v0.py", "policies/static.py"
QUEUE_FILE, BOOKING, LEAP = "policies/queues.py", "simulator/engines/booking.py", "simulator/engines/leap.py"
FAST, STEP, STATE = "simulator/engines/fast.py", "simulator/cost/step.py", "simulator/state.py"
WATERMARK = "keep_free = lim.watermark_blocks if rep.c.n_running > 0 else 0"
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
    Bug("vllm_v0 stands still after preempting itself", V0, "if rep.c.n_running == 0:  #", "if False:  #", RULES),
    Bug("vllm_v0 keeps out who outgrew the watermark", V0, "            keep_free = 0\n", "            pass\n", RULES),
    Bug("vllm_v0 decision held beyond the free blocks", V0, "max(rep.c.free_blocks - 1, 0)",
        "rep.c.free_blocks + rep.c.n_batch", LONG_V0),
    Bug("a prompt that leaves no watermark waits", BOOKING, "> lim.num_blocks - lim.watermark_blocks:",
        "> lim.num_blocks:", RULES),
    Bug("watermark of the usable blocks", "simulator/scenario/setup.py", "int(watermark * blocks)",
        "int(watermark * usable)", RULES_ALL),
    Bug("cached tokens by the token", QUEUE_FILE, "whole - 1) // lim.block_size * lim.block_size", "whole - 1)", RULES),
    Bug("a prompt wholly found in the cache", QUEUE_FILE, "min(req.cached[i], whole - 1)", "req.cached[i]", RULES),
    Bug("watermark holds on an empty replica", CHUNKED, WATERMARK, "keep_free = lim.watermark_blocks", ORACLE),
    Bug("token budget off by one", CHUNKED, "return min(tokens, budget)", "return min(tokens, budget + 1)", RULES),
    Bug("token budget not spent on the running", CHUNKED,
        "            plan(rep, i, tokens)\n            budget -= tokens", "            plan(rep, i, tokens)", RULES),
    Bug("prefill threshold ignored", CHUNKED, "tokens = lim.long_prefill_token_threshold", "tokens = tokens", RULES),
    Bug("whole prompt not reserved", CHUNKED, "lim.reserve_prompt == 1 and", "lim.reserve_prompt == 2 and", RULES),
    Bug("admits after preempting", CHUNKED, "if not preempted:", "if preempted or not preempted:", RULES),
    Bug("slots off by one", CHUNKED, "rep.c.n_running < lim.max_num_seqs", "rep.c.n_running + 1 < lim.max_num_seqs",
        ORACLE),
    Bug("cached tokens computed again", CHUNKED, "start = found(req, lim, i, whole)", "start = 0", ORACLE),
    Bug("prompts above the budget in one step", V0, "if whole - start > budget and rep.c.n_batch > 0:",
        "if whole - start > budget + 1 and rep.c.n_batch > 0:", RULES),
    Bug("static padded for whom it leaves out", STATIC, "        longest, limit = padded, asked\n", "", ORACLE),
    Bug("static batch full of another bucket", STATIC, "if lim.length_bucket == 0:\n        return int",
        "if lim.length_bucket >= 0:\n        return int", RULES),
    Bug("static slots not held to the end", STATIC, "rep.c.pad_rows = rep.c.n_running - rep.c.n_batch",
        "rep.c.pad_rows = 0", ("tests/golden", "-k", "reference")),
    Bug("static clients go on before their answer", STATIC, "                rep.c.n_ended = 0\n",
        "                rep.c.n_ended += 0\n", RULES),
    Bug("admission order reversed", BOOKING, "import push_back, take_out\n",
        "import push_front as push_back, take_out\n", ORACLE),
    Bug("preempted goes to the back", QUEUE_FILE, "    push_front(req, rep, i)\n    return i",
        "    push_back(req, rep, i)\n    return i", QUEUES),
    Bug("preempts the first", QUEUE_FILE, "    i = rep.running[rep.c.n_running]\n",
        "    i = rep.running[0]\n    rep.running[0] = rep.running[rep.c.n_running]\n", QUEUES),
    Bug("preemption drops tokens in flight", QUEUE_FILE, "    req.computed[i] = 0\n",
        "    req.computed[i] = 0\n    req.planned[i] = req.done[i]\n", ORACLE),
    Bug("output of a preempted request is dropped", BOOKING, "if req.status[i] > RUNNING:",
        "if req.status[i] != RUNNING:", RULES),
    Bug("ended by a token in flight but still waiting", BOOKING, "                take_out(req, rep, i)\n",
        "                pass\n", RULES),
    Bug("preemption drops tokens in flight, real scheduler", QUEUE_FILE, "    req.computed[i] = 0\n",
        "    req.computed[i] = 0\n    req.planned[i] = req.done[i]\n", SCHEDULER),
    Bug("admits after preempting, real scheduler", CHUNKED, "if not preempted:", "if preempted or not preempted:",
        SCHEDULER),
    Bug("watermark holds on an empty replica, real scheduler", CHUNKED, WATERMARK, "keep_free = lim.watermark_blocks",
        SCHEDULER),
    Bug("preempts the first, real scheduler", QUEUE_FILE, "    i = rep.running[rep.c.n_running]\n",
        "    i = rep.running[0]\n    rep.running[0] = rep.running[rep.c.n_running]\n", SCHEDULER),
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
        "counters[r].outstanding < counters[best].outstanding",
        "counters[r].outstanding <= counters[best].outstanding", ORACLE),
    Bug("ended requests stay outstanding", BOOKING, "rep.c.outstanding -= ended", "rep.c.outstanding -= 0", ORACLE),
    Bug("high half of a count forgotten", STEP, "(count >> FP_BITS) * part + ", "", REACH),
    Bug("low halves wrap", STEP, "(lowest >> FP_BITS) & LOW", "lowest >> FP_BITS", REACH),
    Bug("products of 64 bits only", STEP,
        "return count * whole + (count >> FP_BITS) * part + ((lowest >> FP_BITS) & LOW)",
        "return (((count >> 16) * coefficient_fp) >> 16) + (((count & 0xFFFF) * coefficient_fp) >> FP_BITS)", SLOW),
    Bug("reach without recomputed answers", "simulator/cost/reach.py", "min(prompt, lim.max_model_len) + answer",
        "min(prompt, lim.max_model_len)", REACH),
    Bug("reach counts real prompts only", "simulator/cost/reach.py", "else rows * whole", "else whole", REACH),
    Bug("sums over the run unchecked", "simulator/engines/job.py", ">= 2**63:", ">= 2**70:", REACH),
    Bug("counts wrap at int32", "simulator/engines/job.py", "<= LARGEST_COUNT:", "<= 2**40:", REACH),
    Bug("longer what-ifs wrap", "simulator/planning/whatif.py", "if longer.max() > MAX_TOKENS:", "if False:", REACH),
    Bug("slope beyond the table forgotten", STEP, " + scaled(tokens - last, cost.slope_fp)", "", ORACLE),
    Bug("leap one step too long", LEAP, "- req.planned[i]\n        most = min(most, left)",
        "- req.planned[i] + 1\n        most = min(most, left)", LONG),
    Bug("leap collects the last output", LEAP, "        most -= 1  #", "        most -= 0  #", LONG),
    Bug("leap crosses into a block one step late", LEAP, "crossings[spare] += 1", "crossings[(spare + 1) % size] += 1",
        LONG),
    Bug("leap takes blocks that are not there", LEAP, "if need > free:", "if need > free + 1:", LONG),
    Bug("leap runs over an arrival", LEAP, "and now < limit and", "and now <= limit and", PARITY),
    Bug("leap runs over the horizon", LEAP, "if output > limit or output > until:", "if output > limit:", HORIZON),
    Bug("leap counts one gap for all", LEAP, "itl[itl_bin(gap)] += rows", "itl[itl_bin(gap)] += 1", LONG),
    Bug("leap forgets the longest gap", LEAP, "longest = max(longest, gap)", "longest = longest", LONG),
    Bug("leap forgets eager launches", LEAP, "stats.eager += eager * launched", "stats.eager += 0", PARITY),
    Bug("an output at an arrival's tick comes after it", FAST, "c.event_phase < ARRIVE", "c.event_phase < COMPLETE",
        PARITY),
    Bug("planning at an arrival's tick comes before it", FAST, "c.event_phase < ARRIVE", "c.event_phase <= SCHEDULE",
        PARITY),
    Bug("TPOT over n", "simulator/metrics/latency.py", "(req.last[rows] - req.first[rows]) / (req.done[rows] - 1)",
        "(req.last[rows] - req.first[rows]) / req.done[rows]", ("tests/unit/test_metrics.py",)),
    Bug("TTFT from the queue", "simulator/metrics/latency.py", "value = req.first[rows] - req.arrival[rows]",
        "value = req.first[rows] - req.queued[rows]", ("tests/unit/test_metrics.py",)),
    Bug("compile cache blind to edits", "simulator/jit.py", "digest.update(path.read_bytes())",
        "digest.update(path.name.encode())", ("tests/unit/test_public_api.py", "-k", "hash")),
)  # fmt: skip
