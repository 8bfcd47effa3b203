"""max_model_len: the longest sequence an engine accepts, which one request must be able to reach.

vLLM refuses to start where it cannot (vLLM 0.24, vllm/v1/core/kv_cache_utils.py, check_enough_kv_cache_memory: "To
serve at least one request with the model's max seq len ... KV cache is needed"), also with a number of blocks that is
given; and where it is above the positions the model was made for (vllm/config/model.py, _get_and_verify_max_len).
"""

from collections.abc import Callable

from simulator.errors import CapacityError, ConfigError
from simulator.profiles.capacity import KvCapacity
from simulator.profiles.gpu import Gpu
from simulator.profiles.model import ModelShape
from simulator.profiles.uncertainty import load_uncertainty
from simulator.state import Limits
from simulator.units import GIB
from simulator.windows import admission_blocks

ADVICE = "a smaller max_model_len, more GPUs a replica, a smaller number format, a higher gpu_memory_utilization"


def check_positions(model: ModelShape, length: int) -> None:
    """Raise ConfigError for a length above the model's positions (rope scaling of its config.json included)."""
    if length > model.max_positions:
        raise ConfigError(f"must be <= {model.max_positions:,}, the positions of {model.name} (it has no "
                          f"rope scaling beyond them), got {length:,}")


def check_fits(length: int, tokens: int, capacity: KvCapacity, given: bool) -> None:
    """Raise CapacityError when one sequence of `length` [tokens] does not fit the `tokens` of KV memory.

    `given` says that the length was asked for; else it is the model's own.
    """
    if length <= tokens:
        return
    where = f"{capacity.tensor_parallel} x {capacity.gpu}"
    whose = f"{length:,}" if given else f"{length:,}, the positions of {capacity.model} (the default)"
    if capacity.layer_groups > 1:  # a long sequence takes a smaller part of memory than a short one's tokens would
        raise CapacityError(f"must be <= {tokens:,}, got {whose}: {where} hold one sequence of {tokens:,} tokens, so "
                            f"the engine would not start; accepted: {ADVICE}")
    need, left = (n * capacity.kv_bytes_per_token / GIB for n in (length, tokens))
    raise CapacityError(f"must be <= {tokens:,}, got {whose}: one sequence of that length needs "
                        f"{need:.2f} GiB of KV per GPU, {where} hold {left:.2f} GiB ({tokens:,} tokens), so the engine "
                        f"would not start; accepted: {ADVICE}")


def kv_tokens(limits: Limits) -> int:
    """[tokens] of KV memory that one sequence can have for itself."""
    return _longest(limits, limits.num_blocks)


def _longest(limits: Limits, blocks: int) -> int:
    """[tokens] of the longest sequence that `blocks` hold."""
    full, windowed = limits.full_groups, limits.window_groups
    if not windowed:
        return blocks * limits.block_size
    rows = blocks // (full + windowed)
    most = admission_blocks(limits._replace(full_groups=0, window_groups=1), 2**40)  # of one windowed group
    if rows >= most:
        rows = (blocks - windowed * most) // full if full else -(-limits.max_model_len // limits.block_size)
    return rows * limits.block_size


def safe_tokens(limits: Limits, gpu: Gpu, given: bool) -> int:
    """[tokens] of it that are there even where the predicted blocks are too many by the prediction's error.

    The error is that of the GPU profile's mark (hwprofiles/uncertainty.yaml); blocks that are `given` are exact.
    """
    known = load_uncertainty()
    error = known.half_width["num_gpu_blocks"] * known.factor.get(gpu.mark, max(known.factor.values()))
    return _longest(limits, limits.num_blocks if given else int(limits.num_blocks / (1 + error)))


def longest_that_fits(most: int, tokens: Callable[[int], int]) -> int:
    """The largest length up to `most` of which one sequence fits `tokens(length)`, which falls as length grows.

    Raises CapacityError when not even a sequence of two tokens does.
    """

    def fits(length: int) -> bool:
        try:
            return length <= tokens(length)
        except CapacityError:
            return False

    if fits(most):
        return most
    low, high = min(2, most), most
    tokens(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
