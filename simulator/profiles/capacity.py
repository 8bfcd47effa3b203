"""GPU memory of a serving engine: what is left for KV blocks, with every part in bytes.

    blocks = floor((utilisation x total - weights - activations - CUDA graphs - workspace) / block bytes)

per GPU; all GPUs of a tensor-parallel group hold the same number of blocks, so blocks are not multiplied by
their number. Total: as CUDA reports it (GPU profile). Weights include embedding, head and what is loaded with them;
activations are the peak of the engine's profiling run, which of vLLM 0.24 is larger on a first start than on a later
one; graphs: per layer and graph, of engines that subtract them; workspace: contexts, library and communication
buffers (profiles.reserve). Memory of graphs and workspace are fitted on block counts that engines printed
(docs/calibration.md). `profiles.engine.ACCOUNTING` has the other engines' formulas.
"""

from dataclasses import dataclass

from simulator.errors import CapacityError, ConfigError
from simulator.profiles.adapters import Lora
from simulator.profiles.engine import EngineProfile
from simulator.profiles.gpu import Gpu
from simulator.profiles.kv_groups import KvGroups, kv_groups
from simulator.profiles.reserve import (
    beside_weights,
    check_compile_cache,
    graph_bytes,
    peak_bytes,
    workspace_bytes,
)
from simulator.profiles.shape import ModelShape
from simulator.profiles.speculation import NGRAM
from simulator.profiles.stages import largest_stage
from simulator.text import several
from simulator.units import GIB


@dataclass(frozen=True)
class KvCapacity:
    """Memory of one GPU in bytes; `usable_bytes` is what the engine may use of `total_bytes`."""

    gpu: str
    model: str
    tensor_parallel: int
    weight_format: str
    total_bytes: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    graph_bytes: int
    workspace_bytes: int
    kv_bytes: int  # left for KV blocks
    kv_bytes_per_token: int  # on one GPU, all layers
    block_size: int  # [tokens]
    block_bytes: int  # of one group of layers
    num_gpu_blocks: int
    groups: KvGroups  # of layers, with block tables of their own
    tokens: int  # that fit; with windows: in requests of max_model_len
    max_num_seqs: int
    max_num_batched_tokens: int
    pipeline_parallel: int = 1
    compile_cache: bool = False  # torch.compile's cache is there from an earlier start

    @property
    def layer_groups(self) -> int:
        """Number of groups: a token takes a part of a block in each."""
        return len(self.groups.windows)

    def requests_at_once(self, tokens: int) -> int:
        """How many requests of `tokens` tokens hold their whole KV at the same time."""
        each = self.groups.blocks(tokens, self.max_num_batched_tokens, self.block_size)
        return max(0, self.num_gpu_blocks - 1) // each

    def rows(self) -> list[tuple[str, int]]:
        """(part, bytes) in the order of the formula, for printing."""
        return [
            ("usable", self.usable_bytes),
            ("weights (embedding and head included)", -self.weight_bytes),
            ("peak of the engine's profiling run", -self.activation_bytes),
            ("CUDA graphs", -self.graph_bytes),
            ("workspace", -self.workspace_bytes),
            ("left for KV", self.kv_bytes),
        ]

    def equation(self) -> str:
        """Bytes of a block, blocks and tokens in one line; of models with windows the block of one group of layers."""
        groups = f" of one of {self.layer_groups} groups of layers" if self.layer_groups > 1 else ""
        longest = " in requests of the longest length" if self.layer_groups > 1 else ""
        return (f"{self.block_bytes // self.block_size:,} bytes of KV per token{groups} x {self.block_size} tokens = "
                f"{self.block_bytes:,} bytes per block; {self.num_gpu_blocks:,} blocks fit, {self.tokens:,} tokens"
                f"{longest}")

    def text(self) -> str:
        """The breakdown and the formula as plain text."""
        stage = f", the fullest of {self.pipeline_parallel} stages" if self.pipeline_parallel > 1 else ""
        lines = [f"{self.model} on {self.tensor_parallel} x {self.gpu}{stage}, per GPU"]
        lines += [f"  {name:<40}{size / GIB:>9.2f} GiB" for name, size in self.rows()]
        lines.append(f"  {self.equation()}")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Limits:
    seqs: int
    budget: int
    share: float
    block_size: int
    max_model_len: int


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
    max_model_len: int | None = None,
    draft: ModelShape | None = None,
    draft_tokens: int = 0,
    lora: Lora | None = None,
    stages: int = 1,
    compile_cache: bool = False,
) -> KvCapacity:
    """Memory breakdown and number of KV blocks. None takes the engine's default on this GPU, the model's length.

    A `lora` adds its slots to the weights; a `draft` model proposing `draft_tokens` tokens a step adds its weights, its
    layers' KV and larger graphs.
    Of a pipeline of `stages` it is the memory of the GPU that has most to hold. `compile_cache`: torch.compile's cache
    is there from an earlier start of the same engine, which then keeps less back.
    Raises CapacityError when the weights or the parts kept back leave no block, ConfigError for a bad limit, and
    for `compile_cache` of an engine to which it makes no difference.
    """
    seqs, budget = engine.default_limits(gpu)
    limits = _Limits(
        seqs if max_num_seqs is None else max_num_seqs,
        budget if max_num_batched_tokens is None else max_num_batched_tokens,
        engine.gpu_memory_utilization if gpu_memory_utilization is None else gpu_memory_utilization,
        engine.block_size if block_size is None else block_size,
        model.max_positions if max_model_len is None else max_model_len)
    _check(limits)
    if compile_cache:
        check_compile_cache(engine)
    model = largest_stage(model, stages)
    layers = model.layers + (draft.layers if draft else 0)
    older = engine.older_runner(model.architectures, NGRAM if draft_tokens and draft is None else "")
    parts = {
        "weight_bytes": model.weight_bytes(weight_dtype, tp)
        + beside_weights(model, weight_dtype, tp, gpu.compute_capability)
        + (draft.weight_bytes("auto", tp) if draft else 0) + (lora.memory_bytes(model) if lora else 0),
        "activation_bytes": peak_bytes(model, engine, limits.seqs, limits.budget, tp, older, not compile_cache),
        "graph_bytes": graph_bytes(model, engine, limits.seqs, limits.budget, layers, draft_tokens, older),
        "workspace_bytes": workspace_bytes(engine, tp),
    }
    usable = int(gpu.memory_bytes * (1.0 if engine.accounting == "free" else limits.share))
    left = usable - sum(parts.values())
    if engine.accounting == "free":
        left = int(left * limits.share)
        usable = left + sum(parts.values())
    groups = kv_groups(model)
    size = groups.size if len(groups.windows) > 1 else layers
    block_bytes = size * model.kv_layer_bytes(kv_dtype, tp) * limits.block_size
    blocks = left // block_bytes
    if blocks < 1 + len(groups.windows):
        raise CapacityError(_too_small(gpu, model, weight_dtype, tp, usable, sum(parts.values())))
    return KvCapacity(
        gpu=gpu.name,
        model=model.name,
        tensor_parallel=tp,
        weight_format=model.weight_format(weight_dtype).text(),
        total_bytes=gpu.memory_bytes,
        usable_bytes=usable,
        **parts,
        kv_bytes=left,
        kv_bytes_per_token=layers * model.kv_layer_bytes(kv_dtype, tp),
        block_size=limits.block_size,
        block_bytes=block_bytes,
        num_gpu_blocks=blocks,
        groups=groups,
        tokens=_tokens(groups, blocks, limits),
        max_num_seqs=limits.seqs,
        max_num_batched_tokens=limits.budget,
        pipeline_parallel=stages,
        compile_cache=compile_cache,
    )


def _tokens(groups: KvGroups, blocks: int, limits: _Limits) -> int:
    """[tokens] that fit; one block is the engine's null block. With windows as vLLM prints it: requests of the
    longest length that fit at once, times that length (kv_cache_utils.get_kv_cache_capacity)."""
    if groups.windows == (0,):
        return (blocks - 1) * limits.block_size
    each = groups.blocks(limits.max_model_len, limits.budget, limits.block_size)
    return int((blocks - 1) / each * limits.max_model_len)


def _check(limits: _Limits) -> None:
    for name, value in (
        ("max_num_seqs", limits.seqs),
        ("max_num_batched_tokens", limits.budget),
        ("block_size", limits.block_size),
        ("max_model_len", limits.max_model_len),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}")
    if not 0 < limits.share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be in (0, 1], got {limits.share}")


def _too_small(gpu: Gpu, model: ModelShape, weight_dtype: str, tp: int, usable: int, kept: int) -> str:
    """Message naming the smallest tensor-parallel size whose weights fit."""
    rest = kept - model.weight_bytes(weight_dtype, tp)
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n > tp and _splits(model, n)]
    enough = [n for n in sizes if model.weight_bytes(weight_dtype, n) + rest < usable]
    advice = f"needs at least {several(enough[0], 'GPU')} of this kind" if enough else "does not fit GPUs of this kind"
    dtype = model.weight_format(weight_dtype).dtype
    return (
        f"{model.name} in {dtype} on {tp} x {gpu.name}: {kept / GIB:.1f} GiB of weights and reserve "
        f"per GPU leave no KV block in {usable / GIB:.1f} GiB usable; {advice}, or use a smaller weight format"
    )


def _splits(model: ModelShape, tp: int) -> bool:
    try:
        model.check_tp(tp)
    except ConfigError:
        return False
    return True
