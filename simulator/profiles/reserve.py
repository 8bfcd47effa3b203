"""What a serving engine keeps of a GPU's memory besides KV blocks, part by part in bytes.

The peak of vLLM's profiling run is the largest of: its largest batch's forward pass (of a layer: gate, up and their
product, or the same of a token's experts, and three hidden states; 16 bits), its sampler for max_num_seqs rows, and,
of vLLM 0.24 on a first start, a copy of the embedding table. To tune the kernel that looks embeddings up,
torch.compile makes an example of each of its inputs: the table in 16 bits, whatever the layers' weights are in, and
two batches of hidden states. With torch.compile's cache from an earlier start nothing is tuned. Measured: allocation
trace of a profiling run and memory of first and later starts of vLLM 0.24.0 (docs/calibration.md).
"""

from typing import Final

from simulator.errors import ConfigError
from simulator.profiles.engine import EngineProfile, capture_sizes
from simulator.profiles.gpu import HOPPER
from simulator.profiles.quantisation import ACTIVATION_BYTES
from simulator.profiles.shape import ModelShape

MARLIN: Final = (256, 128)
"""Multiples that hidden size and expert width are filled up to in mxfp4 (vLLM 0.24, fused_moe/oracle/mxfp4.py,
mxfp4_round_up_hidden_size_and_intermediate_size, Marlin: what cards before Hopper run, and Hopper did before vLLM's
wheel had Triton's kernels)."""

TRITON_ROWS: Final = 256
MXFP4_GROUP: Final = 32
BIAS_BYTES: Final = 4
"""On Hopper Triton's kernel runs experts in mxfp4 (oracle/mxfp4.py): it has a byte of scale for 32 weights in an order
of its own, rows filled up to a multiple of 256 (third_party/triton_kernels, hopper_scale.py), beside the checkpoint's
scales, which stay, and copies of the biases in 32 bits."""


def beside_weights(model: ModelShape, dtype: str, tp: int, capability: float = 0.0) -> int:
    """[bytes] loaded with the weights: tables of rotary positions in 16 bits, whole on every GPU (vLLM 0.24,
    rotary_embedding/base.py), and what experts in mxfp4 have besides on a GPU of that compute `capability`."""
    tables = model.rotary * ACTIVATION_BYTES
    experts, weights = model.experts, model.weight_format(dtype)
    if not weights.mxfp4 or experts is None:
        return tables
    width, matrices = experts.width // tp, 3 if model.gated_mlp else 2
    if capability == HOPPER:
        first = (matrices - 1) * width  # rows of the first product's weights; of the second's: the hidden size
        scales = _filled(first, TRITON_ROWS) * model.hidden + _filled(model.hidden, TRITON_ROWS) * width
        more = scales / MXFP4_GROUP + (first + model.hidden) * BIAS_BYTES
    else:
        hidden = _filled(model.hidden, MARLIN[0])
        more = matrices * (hidden * _filled(width, MARLIN[1]) - model.hidden * width) * weights.part_bytes("experts")
    return tables + round(model.expert_layers * experts.routed * more)


def peak_bytes(model: ModelShape, engine: EngineProfile, seqs: int, budget: int, tp: int, older: bool,
               first_start: bool) -> int:
    """[bytes] at the peak of the profiling run, for a batch limit and a token budget; `older`: of two model runners;
    `first_start`: torch.compile has no cache yet."""
    if engine.accounting == "static":
        return 0
    logit = engine.sampler_logit_bytes if older or not engine.new_runner else engine.new_sampler_logit_bytes
    forward = budget * _width(model, tp) * ACTIVATION_BYTES
    copied = _copied(model, budget, tp) if engine.compile_copies_table and first_start else 0
    return max(forward, round(seqs * model.vocab * logit), copied)


def graph_bytes(model: ModelShape, engine: EngineProfile, seqs: int, budget: int, layers: int, draft_tokens: int,
                older: bool) -> int:
    """[bytes] of CUDA graphs that the engine takes off the KV cache: of the batches with prefill, cut at attention, and
    of pure decode up to the largest batch. vLLM 0.24's newer model runner takes none off."""
    if not engine.graph_memory_counted or (engine.new_runner and not older):
        return 0
    rows = seqs * (1 + draft_tokens)
    largest = min(engine.graph_limits(rows, model.architectures)[0], budget)
    count = len(capture_sizes(largest)) + len(capture_sizes(min(rows, largest)))
    return round(layers * count * engine.graph_layer_memory_bytes)


def workspace_bytes(engine: EngineProfile, tp: int) -> int:
    """[bytes] of contexts and libraries, and with tensor parallelism of the collectives."""
    return round(engine.workspace_bytes + (engine.collective_workspace_bytes if tp > 1 else 0.0))


def check_compile_cache(engine: EngineProfile, key: str = "compile_cache") -> None:
    """Raise ConfigError, naming `key`, for an engine of which no difference between first and later starts is known."""
    if not engine.compile_copies_table:
        raise ConfigError(f"{key} means nothing for {engine.path.stem or engine.name}: that a first start keeps more "
                          "memory back than a later one is known of vllm-0.24 only")


def _copied(model: ModelShape, budget: int, tp: int) -> int:
    return (-(-model.vocab // tp) + 2 * budget) * model.hidden * ACTIVATION_BYTES


def _width(model: ModelShape, tp: int) -> int:
    """[elements per token] alive in the widest layer on one GPU."""
    dense = (3 if model.gated_mlp else 2) * model.intermediate // tp
    if model.experts is None:
        return 3 * model.hidden + dense
    experts = model.experts  # one buffer for the first product and the result, one for what lies between
    routed = experts.active * (max(2 * experts.width // tp, model.hidden) + experts.width // tp)
    return 3 * model.hidden + max(routed + 3 * experts.shared_width // tp, dense if experts.dense_layers else 0)


def _filled(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
