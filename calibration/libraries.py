"""Time well-kept libraries beside our kernels: torch (cuBLAS, its attention), flash-attn, FlashInfer.

Run by the harness as its own process; prints JSON lines like the CUDA programs, table `libraries`, and for
each library that cannot be imported one row of table `libraries_absent`. Same shapes as the kernels' grids,
bf16, 32 query heads, 8 KV heads, head size 128; medians over CUDA-graph replays with rotating inputs.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 32, 8, 128, 16
SAMPLES = 20
L2_BYTES = 400e6  # rotate at least this much input
GEMMS = (("qkv", 6144, 4096), ("o", 4096, 4096), ("gate_up", 28672, 4096), ("down", 4096, 14336))


def emit(table: str, **values: object) -> None:
    """Print one row."""
    print(json.dumps({"table": table, **values}), flush=True)


def load(name: str) -> Any:
    """Import a library, or report why not and return None."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        emit("libraries_absent", name=name, reason=f"{type(error).__name__}: {error}"[:200])
        return None


def time_graph(torch: Any, launch: Callable[[int], object], rotate: int) -> dict[str, float | int]:
    """Median, p10 and p90 microseconds of `launch(i)`; a replayed graph holds `rotate` or more launches."""
    launch(0)
    torch.cuda.synchronize()
    count = max(rotate, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            launch(i % rotate)
    samples = []
    for i in range(SAMPLES + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            samples.append(1e3 * start.elapsed_time(end) / count)
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    middle = statistics.median(samples)
    return {"us": middle, "us_p10": tenths[0], "us_p90": tenths[8], "samples": len(samples)}


def copies(bytes_each: float) -> int:
    """How many input sets make the rotation larger than the L2 cache, at most 64."""
    return max(1, min(64, math.ceil(L2_BYTES / bytes_each)))


def time_gemms(torch: Any, rows: tuple[int, ...]) -> None:
    """torch.matmul in bf16 on the 8B model's projections."""
    for op, n, k in GEMMS:
        weights = [torch.randn(n, k, device="cuda").bfloat16() for _ in range(copies(2 * n * k))]

        def launch(i: int, x: Any, w: Any = weights) -> None:
            torch.matmul(x, w[i].t())

        for m in rows:
            x = torch.randn(m, k, device="cuda").bfloat16()
            t = time_graph(torch, partial(launch, x=x), len(weights))
            rate = {"TFLOPs": 2e-6 * m * n * k / t["us"]}
            emit("libraries", kernel="torch.matmul", op=op, dtype="bf16", m=m, n=n, k=k, **t, **rate)


def time_prefill(torch: Any, lengths: tuple[int, ...]) -> None:
    """torch's fused flash attention, causal, contiguous KV (it has no paged form)."""
    attend = torch.nn.functional.scaled_dot_product_attention
    backend = torch.nn.attention.SDPBackend.FLASH_ATTENTION
    for n in lengths:
        sets = copies(2.0 * n * HEAD_SIZE * (HEADS + 2 * KV_HEADS))
        inputs = [
            [torch.randn(1, h, n, HEAD_SIZE, device="cuda").bfloat16() for h in (HEADS, KV_HEADS, KV_HEADS)]
            for _ in range(sets)
        ]

        def launch(i: int, x: Any = inputs) -> None:
            attend(*x[i], is_causal=True, enable_gqa=True)

        with torch.nn.attention.sdpa_kernel(backend):
            t = time_graph(torch, launch, sets)
        rate = {"TFLOPs": 4e-6 * HEAD_SIZE * HEADS * n * (n + 1) / 2 / t["us"]}
        where = {"op": "prefill", "batch": 1, "queries": n, "past": 0}
        emit("libraries", kernel="torch flash attention, contiguous KV", **where, **t, **rate)


def paged_inputs(torch: Any, batch: int, context: int) -> tuple[Any, ...]:
    """Query, caches [blocks, block, KV heads, head size], block tables in random order, lengths."""
    per = math.ceil(context / BLOCK)
    sets = min(copies(4.0 * batch * context * KV_HEADS * HEAD_SIZE), 16)
    shape = (sets * batch * per, BLOCK, KV_HEADS, HEAD_SIZE)
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(shape[0], device="cuda").int().view(sets, batch, per)
    query = torch.randn(batch, 1, HEADS, HEAD_SIZE, device="cuda").bfloat16()
    return query, k, v, tables, torch.full((batch,), context, dtype=torch.int32, device="cuda")


def emit_decode(kernel: str, batch: int, context: int, t: dict[str, float | int]) -> None:
    """One row of paged decode."""
    rate = 4e-3 * batch * context * KV_HEADS * HEAD_SIZE / t["us"]
    emit("libraries", kernel=kernel, op="paged_decode", batch=batch, context=context, **t, kv_GBps=rate)


def time_paged_decode(torch: Any, flash_attn: Any, points: tuple[tuple[int, int], ...]) -> None:
    """flash-attn's paged decode; its versions before 3 accept blocks of a multiple of 256 only."""
    for batch, context in points:
        q, k, v, tables, lengths = paged_inputs(torch, batch, context)
        attend = partial(flash_attn.flash_attn_with_kvcache, q, k, v, cache_seqlens=lengths, causal=True)

        def launch(i: int, f: Any = attend, tables: Any = tables) -> None:
            f(block_table=tables[i])

        try:
            t = time_graph(torch, launch, tables.shape[0])
        except RuntimeError as error:
            emit("libraries_absent", name="flash_attn paged decode", reason=str(error)[:200])
            return
        emit_decode("flash_attn_with_kvcache", batch, context, t)


def time_flashinfer(torch: Any, flashinfer: Any, points: tuple[tuple[int, int], ...]) -> None:
    """FlashInfer's paged decode wrapper, planned once a point."""
    for batch, context in points:
        q, k, v, tables, lengths = paged_inputs(torch, batch, context)
        space = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
        starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * tables.shape[2]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD")
        sizes = (HEADS, KV_HEADS, HEAD_SIZE, BLOCK)
        last = (lengths - 1) % BLOCK + 1
        wrapper.plan(starts, tables[0].flatten(), last, *sizes, q_data_type=torch.bfloat16)

        def launch(i: int, w: Any = wrapper, q: Any = q[:, 0], kv: Any = (k, v)) -> None:
            w.run(q, kv)

        emit_decode("flashinfer decode", batch, context, time_graph(torch, launch, 1))


def main() -> int:
    """Time what can be imported."""
    quick = "--quick" in sys.argv[1:]
    torch = load("torch")
    flash_attn, flashinfer = load("flash_attn"), load("flashinfer")
    if torch is None or not torch.cuda.is_available():
        return 0
    emit("versions", torch=torch.__version__, torch_cuda=torch.version.cuda)
    time_gemms(torch, (1, 512) if quick else (1, 16, 64, 128, 256, 512, 1024, 2048, 8192))
    time_prefill(torch, (2048,) if quick else (512, 2048, 8192))
    points = ((64, 2048),) if quick else ((1, 2048), (16, 2048), (64, 512), (64, 2048), (64, 8192))
    if flash_attn is not None:
        time_paged_decode(torch, flash_attn, points)
    if flashinfer is not None:
        time_flashinfer(torch, flashinfer, points)
    return 0


if __name__ == "__main__":
    sys.exit(main())
