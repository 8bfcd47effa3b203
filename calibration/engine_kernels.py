"""Times of an engine's own kernels of quantised products: python calibration/engine_kernels.py OUT.json

Matrix products of Llama-3.1-8B and 70B layers in 16 bits, fp8 (one scale a tensor; blocks of 128 x 128) and 4 bits
(groups of 128, with and without zero points; Machete and Marlin), and fused experts of Qwen3-30B-A3B and of
DeepSeek-V3 over eight GPUs in 16 bits and block fp8. Weights and activations are random, not zero: zeros draw less
power, and large products then run up to a sixth faster than real ones. Each time is the median of replays of a CUDA
graph that goes round copies of the weights larger than the L2 cache; quantisation of the activations is timed apart.
`launch_us` is what the host needs for one call without a graph, the best of ten rounds: other work only adds to it.

Stands alone: it is run where vLLM and a GPU are. calibration/fit_quantised.py reads what it writes.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import vllm
from vllm import _custom_ops as ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
from vllm.model_executor.layers.quantization.utils import marlin_utils
from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8
from vllm.scalar_type import scalar_types

FP8 = torch.float8_e4m3fn
ROWS = (1, 8, 16, 17, 32, 64, 65, 128, 256, 512, 1024, 2048, 4096)
PRODUCTS = {"8b": ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)),
            "70b": ((8192, 10240), (8192, 8192), (8192, 57344), (28672, 8192))}  # (k, n)
EXPERTS = {"qwen3-30b-a3b": (128, 8, 2048, 768), "deepseek-v3-tp8": (256, 8, 7168, 256)}
"""Experts, active, hidden, width."""
L2_BYTES = 256e6
GROUP = 128

Call = Callable[[torch.Tensor], Any]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 16


def bits(*shape: int) -> torch.Tensor:
    return torch.randint(-2**31, 2**31 - 1, shape, device="cuda", dtype=torch.int32)


def sixteen(k: int, n: int) -> Call:
    weight = noise(n, k).t()
    return lambda x: torch.mm(x, weight)


def fp8_tensor(k: int, n: int) -> Call:
    weight, scale = noise(n, k).to(FP8).t(), torch.ones(1, device="cuda")
    return lambda x: ops.cutlass_scaled_mm(x, weight, scale, scale, torch.bfloat16)


def fp8_block(k: int, n: int) -> Call:
    weight = noise(n, k).to(FP8)
    scales = torch.ones(n // GROUP, k // GROUP, device="cuda")
    return lambda x: ops.cutlass_scaled_mm(x[0], weight.T, x[1], scales.T, torch.bfloat16)


def machete(k: int, n: int, zeros: bool) -> Call:
    kind = scalar_types.uint4 if zeros else scalar_types.uint4b8
    packed = ops.machete_prepack_B(bits(n, k // 8).t(), torch.bfloat16, kind, torch.bfloat16)
    scales = noise(k // GROUP, n)
    minus = noise(k // GROUP, n) if zeros else None
    return partial(ops.machete_mm, b_q=packed, b_type=kind, b_group_zeros=minus, b_group_scales=scales,
                   b_group_size=GROUP)


def marlin(k: int, n: int) -> Call:
    kind = scalar_types.uint4
    perm = torch.empty(0, dtype=torch.int, device="cuda")
    packed = bits(k // 16, 2 * n)  # as after repacking: tiles of 16 rows, eight weights a word
    scales = marlin_utils.marlin_permute_scales(noise(k // GROUP, n), size_k=k, size_n=n, group_size=GROUP)
    zeros = marlin_utils.awq_to_marlin_zero_points(bits(k // GROUP, n // 8), size_k=k // GROUP, size_n=n, num_bits=4)
    space = marlin_utils.marlin_make_workspace_new(torch.device("cuda", 0))
    return lambda x: marlin_utils.apply_awq_marlin_linear(x, packed, scales, zeros, perm, perm, space, kind, n, k)


FORMATS: dict[str, tuple[Callable[[int, int], Call], float]] = {  # -> (maker, bytes a weight)
    "bf16": (sixteen, 2.0),
    "fp8": (fp8_tensor, 1.0),
    "fp8_block": (fp8_block, 1.0),
    "int4_zeros": (lambda k, n: machete(k, n, True), 0.53),
    "int4": (lambda k, n: machete(k, n, False), 0.52),
    "int4_zeros_marlin": (marlin, 0.53),
}


def inputs(name: str, rows: int, k: int) -> Any:
    """Activations as the kernel takes them: quantised before, which is timed apart."""
    x = noise(rows, k)
    if name == "fp8":
        return ops.scaled_fp8_quant(x)[0]
    if name == "fp8_block":
        return per_token_group_quant_fp8(x, GROUP, column_major_scales=True)
    return x


def graph_us(calls: list[Callable[[], Any]]) -> float:
    """[us] a call: median of seven replays of a graph of all of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    found = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(found)


def launch_us(call: Callable[[], Any], times: int = 100) -> float:
    """[us] of the host for one call, nothing waited for: the best of ten rounds."""
    found = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        found.append((time.perf_counter() - begin) / times * 1e6)
    torch.cuda.synchronize()
    return min(found)


def products() -> Iterator[dict[str, Any]]:
    for size, shapes in PRODUCTS.items():
        for k, n in shapes:
            for name, (make, width) in FORMATS.items():
                copies = [make(k, n) for _ in range(max(2, min(40, int(L2_BYTES / (k * n * width)) + 1)))]
                for rows in ROWS:
                    x = inputs(name, rows, k)
                    calls = [partial(copy, x) for copy in copies]
                    row = {"model": size, "format": name, "m": rows, "n": n, "k": k, "us": graph_us(calls)}
                    yield row | ({"launch_us": launch_us(calls[0])} if rows == 1 else {})
                del copies, calls
                torch.cuda.empty_cache()


def quantising() -> Iterator[dict[str, Any]]:
    for k in (4096, 8192, 14336):
        for rows in (1, 64, 512, 2048):
            x = noise(rows, k)
            calls = {"fp8": partial(ops.scaled_fp8_quant, x),
                     "fp8_block": partial(per_token_group_quant_fp8, x, GROUP, column_major_scales=True)}
            for name, call in calls.items():
                yield {"format": name, "m": rows, "k": k, "quantise_us": graph_us([call] * 20),
                       "launch_us": launch_us(call)}


def experts() -> Iterator[dict[str, Any]]:
    for model, (count, active, hidden, width) in EXPERTS.items():
        for name in ("bf16", "fp8_block"):
            up, down = noise(count, 2 * width, hidden), noise(count, hidden, width)
            config = None
            if name == "fp8_block":
                up, down = up.to(FP8), down.to(FP8)
                config = fp8_w8a8_moe_quant_config(
                    w1_scale=torch.ones(count, 2 * width // GROUP, hidden // GROUP, device="cuda"),
                    w2_scale=torch.ones(count, hidden // GROUP, width // GROUP, device="cuda"),
                    block_shape=[GROUP, GROUP])
            for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
                x, share = noise(rows, hidden), torch.full((rows, active), 1.0 / active, device="cuda")
                chosen = [torch.stack([torch.randperm(count, device="cuda")[:active] for _ in range(rows)])
                          .to(torch.int32) for _ in range(4)]
                calls = [partial(fused_experts, x, up, down, share, ids, quant_config=config) for ids in chosen]
                yield {"model": model, "format": name, "experts": count, "active": active, "hidden": hidden,
                       "width": width, "m": rows, "us": graph_us(calls),
                       "touched": statistics.mean(len(torch.unique(ids)) for ids in chosen)}


def main(path: str) -> None:
    torch.manual_seed(0)
    gpu = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {"gpu": gpu.name, "vllm": vllm.__version__, "torch": torch.__version__}
    with set_current_vllm_config(VllmConfig()), torch.inference_mode():
        for section, rows in (("products", products), ("quantise", quantising), ("experts", experts)):
            found[section] = list(rows())
            with open(path, "w") as out:
                json.dump(found, out)
            print(section, len(found[section]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
