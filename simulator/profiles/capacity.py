"""GPU memory of a serving engine: what is left for KV blocks, with every part in bytes.

    blocks = floor((utilisation x total - weights - activations - logits - graphs - workspace) / block
    bytes)

per GPU; all GPUs of a tensor-parallel group hold the same number of blocks, so blocks are not multiplied by
their number. Weights include embedding and head. Activations: the largest batch through one layer (residual
and hidden state twice each, qkv, gate, up and their product, 16 bits). Logits: one row per sequence in 32
bits. Graphs: what CUDA keeps per layer and captured size. Workspace: contexts, library buffers and
fragmentation, in proportion to hidden size. The last two are fitted on block counts printed by the engine
(vLLM 0.24, docs/calibration.md); they did not shrink with tensor parallelism, so activations are not split.
"""

from dataclasses import dataclass

from simulator.cost.engine_times import capture_sizes
from simulator.errors import CapacityError, ConfigError
from simulator.profiles.engine import EngineProfile
from simulator.profiles.gpu import Gpu
from simulator.profiles.model import ACTIVATION_BYTES, ModelShape
from simulator.units import GIB

LOGIT_BYTES = 4


@dataclass(frozen=True)
class KvCapacity:
    """Memory of one GPU in bytes; `usable_bytes` is what the engine may use of `total_bytes`."""

    gpu: str
    model: str
    tensor_parallel: int
    total_bytes: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    logit_bytes: int
    graph_bytes: int
    workspace_bytes: int
    kv_bytes: int  # left for KV blocks
    kv_bytes_per_token: int  # on one GPU
    block_size: int  # [tokens]
    block_bytes: int
    num_gpu_blocks: int

    @property
    def tokens(self) -> int:
        """[tokens] that fit; one block is the engine's null block."""
        return max(0, self.num_gpu_blocks - 1) * self.block_size

    def rows(self) -> list[tuple[str, int]]:
        """(part, bytes) in the order of the formula, for printing."""
        return [
            ("usable", self.usable_bytes),
            ("weights (embedding and head included)", -self.weight_bytes),
            ("activations", -self.activation_bytes),
            ("logits", -self.logit_bytes),
            ("CUDA graphs", -self.graph_bytes),
            ("workspace", -self.workspace_bytes),
            ("left for KV", self.kv_bytes),
        ]

    def text(self) -> str:
        """The breakdown and the formula as plain text."""
        lines = [f"{self.model} on {self.tensor_parallel} x {self.gpu}, per GPU"]
        lines += [f"  {name:<40}{size / GIB:>9.2f} GiB" for name, size in self.rows()]
        lines.append(
            f"  {self.kv_bytes_per_token:,} bytes of KV per token x {self.block_size} tokens = "
            f"{self.block_bytes:,} bytes per block -> {self.num_gpu_blocks:,} blocks, "
            f"{self.tokens:,} tokens"
        )
        return "\n".join(lines)


def kv_capacity(
    gpu: Gpu,
    engine: EngineProfile,
    model: ModelShape,
    tp: int = 1,
    weight_dtype: str = "bf16",
    kv_dtype: str = "bf16",
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
) -> KvCapacity:
    """Memory breakdown and number of KV blocks. None takes the engine's default.

    Raises CapacityError when the weights or the parts kept back leave no block, ConfigError for a bad
    limit.
    """
    seqs = engine.max_num_seqs if max_num_seqs is None else max_num_seqs
    budget = engine.max_num_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
    share = engine.gpu_memory_utilization if gpu_memory_utilization is None else gpu_memory_utilization
    size = engine.block_size if block_size is None else block_size
    _check(seqs, budget, share, size)
    sizes = len(capture_sizes(engine.graph_limits(seqs)[0]))
    parts = {
        "weight_bytes": model.weight_bytes(weight_dtype, tp),
        "activation_bytes": budget * _activation_width(model) * ACTIVATION_BYTES,
        "logit_bytes": seqs * model.vocab * LOGIT_BYTES,
        "graph_bytes": round(model.layers * sizes * engine.graph_layer_memory_bytes),
        "workspace_bytes": round(model.hidden * engine.workspace_per_hidden_bytes),
    }
    usable = int(gpu.memory_bytes * share)
    left = usable - sum(parts.values())
    per_token = model.kv_bytes_per_token(kv_dtype, tp)
    blocks = left // (per_token * size)
    if blocks < 2:
        raise CapacityError(_too_small(gpu, model, weight_dtype, tp, usable, sum(parts.values())))
    return KvCapacity(
        gpu=gpu.name,
        model=model.name,
        tensor_parallel=tp,
        total_bytes=gpu.memory_bytes,
        usable_bytes=usable,
        **parts,
        kv_bytes=left,
        kv_bytes_per_token=per_token,
        block_size=size,
        block_bytes=per_token * size,
        num_gpu_blocks=blocks,
    )


def _activation_width(model: ModelShape) -> int:
    """[elements per token] alive in the widest layer, whole model."""
    qkv = model.attention_gemms()[0].n
    width = model.experts.width * model.experts.active if model.experts else model.intermediate
    return 4 * model.hidden + qkv + (3 if model.gated_mlp else 2) * width


def _check(seqs: int, budget: int, share: float, block_size: int) -> None:
    for name, value in (
        ("max_num_seqs", seqs),
        ("max_num_batched_tokens", budget),
        ("block_size", block_size),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}")
    if not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be in (0, 1], got {share}")


def _too_small(gpu: Gpu, model: ModelShape, weight_dtype: str, tp: int, usable: int, kept: int) -> str:
    """Message naming the smallest tensor-parallel size whose weights fit."""
    rest = kept - model.weight_bytes(weight_dtype, tp)
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n > tp and _splits(model, n)]
    enough = [n for n in sizes if model.weight_bytes(weight_dtype, n) + rest < usable]
    advice = f"needs at least {enough[0]} GPUs of this kind" if enough else "does not fit GPUs of this kind"
    return (
        f"{model.name} in {weight_dtype} on {tp} x {gpu.name}: {kept / GIB:.1f} GiB of weights and reserve "
        f"per GPU leave no KV block in {usable / GIB:.1f} GiB usable; {advice}, or use a smaller weight format"
    )


def _splits(model: ModelShape, tp: int) -> bool:
    try:
        model.check_tp(tp)
    except ConfigError:
        return False
    return True
