"""Times of a layer's products as a busy engine runs them: python calibration/engine_layers.py OUT.json [SECONDS]

The four products of a dense layer, one after another, in 16 bits, in fp8 with one scale a row (CUTLASS) and in blocks
of 128 x 128 (DeepGEMM, CUTLASS), with and without the kernels that quantise their activations. Each is timed alone,
with pauses between, and under sustained load, when the card's power limit lowers its clocks: full prefill steps of a
busy engine are like that. Weights and activations are random: zeros draw less power. DeepGEMM compiles its kernels at
first use.

Stands alone: it is run where vLLM and a GPU are. calibration/fit_formats.py reads what it writes.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import vllm
from vllm import _custom_ops as ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8
from vllm.utils.deep_gemm import fp8_gemm_nt, is_deep_gemm_e8m0_used

FP8 = torch.float8_e4m3fn
GROUP = 128
LAYERS = {"qwen3-14b": ((7168, 5120), (5120, 5120), (34816, 5120), (5120, 17408)),
          "qwen3-8b": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
          "llama-3.1-70b": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))}  # (n, k)
ROWS = (2048, 1024, 512)
COPIES = 2  # of a layer, so that weights are not in the L2 cache
FORMATS = ("fp8_block_deep_gemm", "fp8", "bf16", "fp8_block_cutlass")

Call = Callable[[], Any]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def product(name: str, n: int, k: int, m: int, quantise: bool) -> Call:
    """One product; where `quantise`, with the kernel that brings its activations to 8 bits."""
    x = noise(m, k)
    if name == "bf16":
        plain = (noise(n, k) / 16).t()
        return lambda: torch.mm(x, plain)
    weight, rounded = (noise(n, k) * 16).to(FP8), name == "fp8_block_deep_gemm" and is_deep_gemm_e8m0_used()
    scales = torch.full((n, 1) if name == "fp8" else (n // GROUP, k // GROUP), 2.0**-7, device="cuda")
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def quantised() -> Any:
        if name == "fp8":
            return ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        return per_token_group_quant_fp8(x, GROUP, column_major_scales=True,
                                         tma_aligned_scales=name == "fp8_block_deep_gemm", use_ue8m0=rounded)

    ready = quantised()

    def call() -> Any:
        activations, of_rows = quantised() if quantise else ready
        if name == "fp8_block_deep_gemm":
            return fp8_gemm_nt((activations, of_rows), (weight, scales), out, is_deep_gemm_e8m0_used=rounded)
        return ops.cutlass_scaled_mm(activations, weight.t(), of_rows, scales.t() if name != "fp8" else scales,
                                     torch.bfloat16)

    return call


def replays_ms(graph: torch.cuda.CUDAGraph, times: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / times


def clocks() -> list[str]:
    query = ["nvidia-smi", f"--id={torch.cuda.current_device()}", "--query-gpu=clocks.sm,power.draw",
             "--format=csv,noheader,nounits"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")


def sustained(graph: torch.cuda.CUDAGraph, seconds: float) -> tuple[float, list[str]]:
    """([ms] a replay over the second half of `seconds`, clock and power three quarters through)."""
    times = max(1, int(seconds * 500 / replays_ms(graph, 1)))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(times):
        graph.replay()
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    time.sleep(0.75 * seconds)
    seen = clocks()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / times, seen


def rows(seconds: float) -> Iterator[dict[str, Any]]:
    for m in ROWS:
        for model, shapes in LAYERS.items():
            for name in FORMATS:
                for quantise in ((False,) if name == "bf16" else (True, False)):
                    calls = [product(name, n, k, m, quantise) for _ in range(COPIES) for n, k in shapes]
                    for call in calls:
                        call()
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        for call in calls:
                            call()
                    alone = []
                    for _ in range(9):
                        time.sleep(0.02)
                        alone.append(replays_ms(graph, 1))
                    busy, (clock, watts) = sustained(graph, seconds)
                    yield {"model": model, "format": name, "m": m, "quantise": quantise,
                           "alone_us": round(1e3 * statistics.median(alone) / COPIES, 2),
                           "sustained_us": round(1e3 * busy / COPIES, 2),
                           "sm_mhz": int(clock), "watts": float(watts)}


def main() -> None:
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 1.5
    content: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "vllm": vllm.__version__,
                               "torch": torch.__version__, "layers": []}
    with set_current_vllm_config(VllmConfig()):
        for row in rows(seconds):
            content["layers"].append(row)
            print(json.dumps(row), flush=True)
            with open(sys.argv[1], "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)


if __name__ == "__main__":
    main()
