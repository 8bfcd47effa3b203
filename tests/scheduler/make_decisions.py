"""Freeze what vLLM 0.24's own scheduler decides on random small scenarios.

    pip download --no-deps vllm==0.24.0 && unzip -q vllm-0.24.0*.whl 'vllm/*.py' -d FOLDER
    python tests/scheduler/make_decisions.py FOLDER

writes decisions.json.gz beside this file: per scenario its limits, its requests [arrival tick, prompt, output,
max_tokens, group, tokens of the prompt that are its group's], their priorities where it has any and, in order, every
plan
["plan", [[request, tokens], ...], [preempted, ...], [[admitted request, tokens found in the cache], ...]] and output
["output", [[request, 1 if it ended], ...]], with speculative decoding [[request, 1 if it ended, tokens], ...]. The
model runner is a clock: every step takes STEP ticks, in a pipeline on each of its stages, launching takes none, and
outputs come before arrivals of their tick. Same wheel, same seed: same file, byte for byte.
"""

import gzip
import hashlib
import json
import random
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm_scheduler import load

from simulator.engines.speculation import accepted
from simulator.engines.world import Acceptance

STEP = 10
END = 999
"""The token that ends an answer."""
KINDS = {"plain": 260, "cache": 60, "cache, short of memory": 60, "priority": 120, "priority, cache": 60, "drafts": 160,
         "drafts, cache": 40, "drafts, cache, short of memory": 40, "pipeline": 160, "pipeline, cache": 40,
         "pipeline, cache, short of memory": 40}
"""Scenarios of each kind. Those with a cache and short of memory share blocks and find them again after preemption:
only an engine with a prefix cache can follow them. Those with priorities are scheduled by them. With drafts, which are
right is drawn as the simulator draws it. Pipelines are of the newer model runner where steps are planned ahead."""
LOOKAHEAD = {"eagle3": 1, "draft_model": 1, "ngram": 0}
"""KV slots kept for each draft to come."""
WITHOUT_CACHE = ("plain", "priority", "drafts", "pipeline")
DATA = Path(__file__).parent / "decisions.json.gz"


def scenario(rng: random.Random, kind: str) -> dict[str, Any]:
    """Limits that bind, arrivals full of ties; every request could run alone. Tokens of the same group are shared."""
    block = rng.choice((1, 2, 4, 16))
    seqs = rng.choice((1, 2, 3, 4, 6, 6))
    requests = []
    for _ in range(rng.randint(2, 9)):
        prompt, output = rng.randint(1, rng.choice((4, 30))), rng.randint(1, rng.choice((3, 20, 40)))
        shared = rng.randint(0, prompt) if kind not in WITHOUT_CACHE else 0
        requests.append([rng.choice((0, 0, 10, 20, 25, 60)), prompt, output, output + rng.choice((0, 0, 0, 5)),
                         rng.randrange(2), shared])  # fmt: skip
    requests.sort(key=lambda each: each[0])
    most = max(-(-(prompt + limit) // block) for _, prompt, _, limit, _, _ in requests)
    spare = 2000 if kind in ("cache", "drafts, cache", "pipeline, cache") else rng.choice((0, 0, 0, 1, 2, 5, 200))
    asked = {"priority": [rng.randint(-1, 2) for _ in requests]} if kind.startswith("priority") else {}
    made = asked | {
        "kind": kind, "max_num_seqs": seqs, "max_num_batched_tokens": max(seqs, rng.choice((1, 4, 8, 16, 64, 512))),
        "long_prefill_token_threshold": rng.choice((0, 0, 3, 8)), "watermark": rng.choice((0.0, 0.0, 0.1, 0.3)),
        "reserve_full_prompt": rng.choice((True, False)), "block_size": block, "num_gpu_blocks": most + spare + 1,
        "schedule_ahead": rng.choice((0, 1, 1)), "requests": requests,
    }  # fmt: skip
    if "pipeline" in kind:
        made["stages"] = rng.choice((2, 2, 3, 4))
    return with_drafts(made, rng) if "drafts" in kind else made


def with_drafts(made: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The scenario with speculative decoding, room for the drafts of one request included."""
    method, tokens = rng.choice(("eagle3", "eagle3", "draft_model", "ngram")), rng.choice((1, 2, 3, 5))
    if method == "ngram":
        made["schedule_ahead"] = 0
    lookahead = LOOKAHEAD[method] * tokens
    longest = max(prompt + limit for _, prompt, _, limit, _, _ in made["requests"])
    most = longest + tokens * (1 + made["schedule_ahead"]) + lookahead
    length = rng.choice((4096, 4096, longest, longest + tokens))
    spare = made["num_gpu_blocks"] - 1 - -(-longest // made["block_size"])
    made["num_gpu_blocks"] = -(-min(most, length) // made["block_size"]) + spare + 1
    made["max_num_batched_tokens"] += rng.choice((0, 1, tokens * made["max_num_seqs"]))
    chances = sorted((rng.choice((0, 2**30, 2**31, 3 * 2**30, 2**32)) for _ in range(tokens)), reverse=True)
    return made | {"max_model_len": length, "drafts": {
        "method": method, "tokens": tokens, "lookahead": lookahead, "chances": chances,
        "salts": [rng.randrange(2**32), rng.randrange(2**32)]}}  # fmt: skip


def speculative(made: dict[str, Any]) -> SimpleNamespace | None:
    """What the scheduler reads of a SpeculativeConfig."""
    if "drafts" not in made:
        return None
    method = made["drafts"]["method"]
    return SimpleNamespace(
        num_speculative_tokens_per_batch_size=None, use_eagle=lambda: method == "eagle3",
        uses_draft_model=lambda: method == "draft_model", use_dflash=lambda: False)  # fmt: skip


def settings(made: dict[str, Any]) -> SimpleNamespace:
    """What the scheduler reads of a VllmConfig."""
    ns = SimpleNamespace
    return ns(
        scheduler_config=ns(
            max_num_seqs=made["max_num_seqs"], max_num_batched_tokens=made["max_num_batched_tokens"],
            max_num_scheduled_tokens=None, policy="priority" if "priority" in made else "fcfs",
            enable_chunked_prefill=True, watermark=made["watermark"],
            long_prefill_token_threshold=made["long_prefill_token_threshold"],
            scheduler_reserve_full_isl=made["reserve_full_prompt"],
            async_scheduling=made["schedule_ahead"] > 0),
        cache_config=ns(num_gpu_blocks=made["num_gpu_blocks"], block_size=made["block_size"], mamba_cache_mode="none",
                        enable_prefix_caching=made["kind"] not in WITHOUT_CACHE),
        parallel_config=ns(data_parallel_index=0, decode_context_parallel_size=1, prefill_context_parallel_size=1,
                           pipeline_parallel_size=made.get("stages", 1)),
        model_config=ns(is_encoder_decoder=False, is_diffusion=False, max_model_len=made.get("max_model_len", 4096),
                        enable_return_routed_experts=False),
        observability_config=ns(kv_cache_metrics=False, enable_mfu_metrics=False), lora_config=None,
        kv_events_config=None, kv_transfer_config=None, ec_transfer_config=None,
        speculative_config=speculative(made), num_speculative_tokens=made.get("drafts", {}).get("tokens", 0),
        use_v2_model_runner="stages" in made and made["schedule_ahead"] > 0,
        max_concurrent_batches=made.get("stages", 1) + made["schedule_ahead"])  # fmt: skip


def digest(value: Any) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()


class Drive:
    """One scenario through the scheduler; `steps` is what it decided."""

    def __init__(self, vllm: Any, made: dict[str, Any]) -> None:
        self.made, self.steps = made, list[Any]()
        block = made["block_size"]
        spec = vllm.interface.FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=64, dtype=None)
        group = vllm.interface.KVCacheGroupSpec(layer_names=["0"], kv_cache_spec=spec)
        cache = vllm.interface.KVCacheConfig(num_blocks=made["num_gpu_blocks"], kv_cache_tensors=[],
                                             kv_cache_groups=[group])  # fmt: skip
        kind = vllm.asynchronous if made["schedule_ahead"] else vllm.synchronous
        self.scheduler = kind(
            vllm_config=settings(made), kv_cache_config=cache, block_size=block, log_stats=False,
            structured_output_manager=SimpleNamespace(should_advance=lambda request: False),
            mm_registry=SimpleNamespace(supports_multimodal_inputs=lambda config: False))  # fmt: skip
        hasher = vllm.block_hasher(block, digest) if made["kind"] not in WITHOUT_CACHE else None
        self.requests = [self.request(vllm, hasher, i, each) for i, each in enumerate(made["requests"])]

    def request(self, vllm: Any, hasher: Any, i: int, each: list[int]) -> Any:
        _, prompt, _, limit, group, shared = each
        tokens = [group * 100_000 + k if k < shared else (i + 10) * 100_000 + k for k in range(prompt)]
        sampling = SimpleNamespace(
            max_tokens=limit, min_tokens=0, eos_token_id=END, stop_token_ids=(), extra_args=None, num_logprobs=None,
            logprobs=None, prompt_logprobs=None, repetition_detection=None, skip_reading_prefix_cache=None)  # fmt: skip
        return vllm.request(request_id=str(i), prompt_token_ids=tokens, sampling_params=sampling, pooling_params=None,
                            block_hasher=hasher, arrival_time=float(i),
                            priority=self.made.get("priority", [0] * (i + 1))[i])  # fmt: skip

    def run(self) -> list[Any]:
        """The loop of EngineCore.step_with_batch_queue, on a clock."""
        now = entered = 0
        stages = self.made.get("stages", 1)
        free = [0] * stages
        flight: deque[tuple[int, Any, dict[str, bool]]] = deque()
        while True:
            while entered < len(self.requests) and self.made["requests"][entered][0] <= now:
                self.scheduler.add_request(self.requests[entered])
                entered += 1
            if self.scheduler.has_unfinished_requests():
                planned = self.plan(bool(flight))
                if planned.num_scheduled_tokens:
                    yields = {i: not self.requests[int(i)].is_prefill_chunk for i in planned.num_scheduled_tokens}
                    start = now
                    if stages > 1 and len(flight) == stages and any(flight[0][2].values()):
                        start = max(start, flight[0][0])  # PPHandler.get_prev_sampled_outputs
                    for s in range(stages):
                        start = free[s] = max(free[s], start) + STEP
                    flight.append((free[-1], planned, yields))
                    if len(flight) < stages + self.made["schedule_ahead"]:
                        continue
                elif planned.preempted_req_ids and not flight:
                    continue  # who had to make room for itself ends a plan; the engine asks again at once
                elif stages > 1 and any(rows for _, _, rows in flight):
                    flight.append((free[-1], planned, {}))
                    if len(flight) < stages + self.made["schedule_ahead"]:
                        continue
                elif stages > 1 and self.scheduler.running and not flight:
                    continue  # for whom rounds pass
            if flight:
                end, planned, yields = flight.popleft()
                now = max(now, end)
                if yields:
                    self.collect(planned, yields)
            elif entered < len(self.requests):
                now = self.made["requests"][entered][0]
            else:
                break
        if any(not request.is_finished() for request in self.requests):
            raise SystemExit(f"not all requests ended: {self.made}")
        return self.steps

    def plan(self, in_flight: bool) -> Any:
        """Ask for a plan; one that only preempts, with nothing in flight, counts with the next."""
        before = {request.request_id for request in self.scheduler.running}
        planned = self.scheduler.schedule()
        rows = planned.num_scheduled_tokens
        admitted = [(i, self.requests[int(i)].num_computed_tokens - n) for i, n in rows.items() if i not in before]
        preempted = sorted(int(i) for i in planned.preempted_req_ids or ())
        if self.steps and self.steps[-1][0] == "plan" and not self.steps[-1][1] and not in_flight:
            preempted = sorted(self.steps.pop()[2] + preempted)
        if rows or preempted:
            planned_rows, found = ([[int(i), n] for i, n in pairs] for pairs in (rows.items(), admitted))
            self.steps.append(["plan", planned_rows, preempted, found])
        return planned

    def collect(self, planned: Any, yields: dict[str, bool]) -> None:
        ids = list(planned.num_scheduled_tokens)
        sampled = [self.tokens(int(i), len(planned.scheduled_spec_decode_tokens.get(i, ()))) if yields[i] else []
                   for i in ids]  # fmt: skip
        output = SimpleNamespace(
            sampled_token_ids=sampled, req_ids=ids, req_id_to_index={i: k for k, i in enumerate(ids)}, logprobs=None,
            prompt_logprobs_dict={}, pooler_output=None, num_nans_in_logits=None, kv_connector_output=None,
            cudagraph_stats=None, routed_experts=None)  # fmt: skip
        found = self.scheduler.update_from_output(planned, output)
        rows = [row for client in found.values() for row in getattr(client, "outputs", ())]
        drafts = self.made.get("drafts")
        self.steps.append(["output", sorted(
            [int(row.request_id), int(row.finish_reason is not None), *([len(row.new_token_ids)] if drafts else ())]
            for row in rows)])  # fmt: skip
        if drafts and not self.made["schedule_ahead"]:  # EngineCore.post_step
            self.scheduler.update_draft_token_ids(
                SimpleNamespace(req_ids=ids, draft_token_ids=[[-1] * drafts["tokens"] for _ in ids]))  # fmt: skip

    def tokens(self, i: int, drafts: int) -> list[int]:
        """What a step yields for request i: its right drafts and a token more."""
        done, right = self.requests[i].num_output_tokens, 0
        if drafts:
            made = self.made["drafts"]
            right = accepted(Acceptance(made["salts"], made["chances"]), i, done, drafts)
        return [self.token(i, done + k) for k in range(1 + right)]

    def token(self, i: int, done: int) -> int:
        """The next token of request i: nobody else's, or the end where its answer is shorter than max_tokens."""
        _, _, output, limit, _, _ = self.made["requests"][i]
        return END if done + 1 == output < limit else (i + 10) * 100_000 + 50_000 + done


def main() -> None:
    vllm = load(Path(sys.argv[1]))
    rng = random.Random(24)
    made = [scenario(rng, kind) for kind, count in KINDS.items() for _ in range(count)]
    for each in made:
        each["steps"] = Drive(vllm, each).run()
    data = {"vllm": "0.24.0", "step": STEP, "scenarios": made}
    DATA.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
    steps = sum(len(each["steps"]) for each in made)
    print(f"{len(made)} scenarios, {steps} decisions and outputs, {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()
