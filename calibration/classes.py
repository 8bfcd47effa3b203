"""Classes of measured runs, what an error is given for: arrivals, GPUs and engine settings alike."""

from typing import Final

from calibration.measured import MeasuredRun
from calibration.predict import setup_of

BUDGET: Final = (2048, 128)
"""Token budget and sequences of most runs; larger ones are named."""
ARRIVALS: Final = {"open": "traffic", "grouped": "batches", "closed": "closed load", "sessions": "conversations"}
AT_ONCE_S: Final = 0.1
"""[s] within which requests were submitted together."""


def class_of(run: MeasuredRun) -> str:
    """`traffic, H200, experts, fp8 weights`: arrivals, GPUs, then what differs from a dense model in 16 bits."""
    engine = run.engine
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    parts = [_arrivals(run), run.gpu.split("-")[0] if gpus == 1 else f"{gpus} x {run.gpu.split('-')[0]}"]
    if engine.pipeline_parallel_size > 1:
        parts.append("pipeline")
    if run.pcie:
        parts.append("PCIe")
    if engine.async_scheduling is False and not engine.speculative:
        parts.append("synchronous")
    model = setup_of(run).model
    stored = model.weight_format()
    weights = engine.quantization or (stored.dtype if stored.quantised else "")
    if stored.mxfp4:  # of gpt-oss alone, whose windows and experts need no words of their own
        parts.append("mxfp4 experts")
    else:
        kinds = {"windows": any(model.windows), "latent attention": model.latent, "experts": model.experts,
                 f"{weights} {'blocks' if stored.in_blocks else 'weights'}": weights}
        parts += [kind for kind, has in kinds.items() if has]
    if engine.kv_cache_dtype not in ("auto", engine.dtype):
        parts.append(f"{engine.kv_cache_dtype} KV")
    if engine.speculative:
        parts.append(f"{engine.speculative['method']} drafts")
    if engine.lora:
        parts.append("LoRA")
    if set(engine.sampling or ()) - {"temperature"}:  # a draw from all tokens takes as long as the likeliest
        parts.append("sampling")
    if engine.scheduling_policy == "priority":
        parts.append("priority")
    if (engine.max_num_batched_tokens, engine.max_num_seqs) > BUDGET:
        parts.append(f"{engine.max_num_batched_tokens} tokens x {engine.max_num_seqs}")
    return ", ".join(parts)


def served_alone(run: MeasuredRun) -> bool:
    """Whether no two of its requests were in the engine at a time."""
    start = run.requests.arrival_s.to_numpy()
    return bool((start[1:] >= (start + run.requests.e2e_s.to_numpy())[:-1]).all())


def _arrivals(run: MeasuredRun) -> str:
    """What came how: requests that never meet are lone ones, equal ones sent at once a batch."""
    if served_alone(run):
        return "lone requests"
    requests = run.requests
    start = requests.arrival_s.to_numpy()
    alike = requests[["prompt_tokens", "output_tokens"]].nunique().max() == 1
    return "batches" if alike and start[-1] - start[0] < AT_ONCE_S else ARRIVALS[run.kind]
