"""Profiles fitted on public operator tables (not shipped): A100, L40S, RTX 4090, RTX PRO 6000.

Reads CSV files of ai-dynamo/aiconfigurator 095f58a (Apache-2.0; products, decode and prefill attention by
vLLM 0.14.0) and casys-kaist/LLMServingSim 5daddb2 (MIT; one layer of Llama-3.1-8B under vLLM 0.19). What is
fitted ships in hwprofiles/gpu with source and licence. Start-ups inside an engine's graph are not in such
tables: they are taken over from the reference GPU where an entry says so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.fit import KV_BYTES, PAIR_FLOPS, TRAFFIC
from calibration.fit_operators import fit_decode, fit_gemm, fit_prefill
from calibration.fit_steps import with_values
from calibration.measured import EngineSettings, MeasuredRun
from calibration.predict import Profiles, predict, setup_of
from hwprofiles import MODEL_DIR
from simulator.cost.gpu_times import UNITS
from simulator.errors import CalibrationError

Array = npt.NDArray[np.float64]

AIC: Final = "ai-dynamo/aiconfigurator 095f58a, vLLM 0.14.0 tables, Apache-2.0"
LSS: Final = "casys-kaist/LLMServingSim 5daddb2, vLLM 0.19 layer times, MIT"
SUSTAINED: Final = 0.81
"""Rate of products under sustained prefill over that in such a table: 667 of 827 TFLOP/s on the H100, where both
are known (output gaps of an engine against the aiconfigurator table)."""
GEMMS: Final = {
    "qkv_proj": (6144, 4096),
    "o_proj": (4096, 4096),
    "gate_up_proj": (28672, 4096),
    "down_proj": (4096, 14336),
}
SMALL_KERNELS: Final = {"act_fn": 1, "layernorm": 2, "rotary_emb": 1}
"""Elementwise kernels of a layer and how often each runs."""


def aic_block(data: Path, stem: str, cache_mib: int) -> dict[str, Any]:
    """`measured:` block of a GPU from the aiconfigurator tables `op_*_{stem}_aic_vllm0.14.0.csv`.

    Products and KV that fit the level-2 cache (`cache_mib`) are left out: a model's do not.
    """
    cache = cache_mib * 2**20
    tail = f"{stem}_aic_vllm0.14.0.csv"
    products = table_of(data / f"op_gemm_{tail}")
    products = products[
        (products.gemm_dtype == "bfloat16")
        & (products.n >= 2048)
        & (products.k >= 2048)
        & (2 * products.n * products.k > cache)
    ]
    gemm = fit_gemm(_rows(products.rename(columns={"latency_us": "us"}), "m", "n", "k", "us"))
    decode = table_of(data / f"op_attention_decode_{tail}")
    decode = decode[
        (decode.num_heads == 32)
        & (decode.num_kv_heads == 8)
        & (decode.head_dim == 128)
        & (decode.kv_len >= 256)
        & (decode.kv_len <= 16384)
        & (decode.batch_size <= 256)
        & (decode.batch_size * decode.kv_len * KV_BYTES > 2 * cache)
    ]
    table = decode.rename(columns={"batch_size": "batch", "kv_len": "context", "latency_us": "us"})
    attention = fit_decode(_rows(table, "batch", "context", "us"), KV_BYTES)
    prefill = table_of(data / f"op_attention_prefill_{tail}")
    prefill = prefill[
        (prefill.num_heads == 32)
        & (prefill.num_kv_heads == 8)
        & (prefill.head_dim == 128)
        & (prefill.seq_len >= 512)
        & (prefill.seq_len <= 8192)
    ]
    table = prefill.rename(columns={"batch_size": "batch", "seq_len": "length", "latency_us": "us"})
    rate, token, error = fit_prefill(_rows(table, "batch", "length", "us"), PAIR_FLOPS)
    gemm_rate = gemm.gemm.rate * SUSTAINED
    block = {
        "gemm_bandwidth": entry_of("gemm_bandwidth", gemm.gemm.bandwidth, AIC, gemm.mean_error),
        "gemm_rate": entry_of(
            "gemm_rate", gemm_rate, f"{AIC}; x {SUSTAINED} for sustained load", gemm.mean_error
        ),
        "gemm_exponent": entry_of("gemm_exponent", gemm.gemm.exponent, AIC, gemm.mean_error),
        "elementwise_bandwidth": entry_of("elementwise_bandwidth", gemm.gemm.bandwidth, AIC, gemm.mean_error),
        "decode_bandwidth": entry_of("decode_bandwidth", attention.bandwidth, AIC, attention.mean_error),
        "decode_sequence": entry_of("decode_sequence", attention.sequence_s, AIC, attention.mean_error),
        "prefill_rate": entry_of("prefill_rate", rate, AIC, error),
        "prefill_token": entry_of("prefill_token", token, AIC, error),
    }
    return {"scaled_from": "h100-sxm", **block}


def lss_block(data: Path, gpu: str, stem: str) -> dict[str, Any]:
    """`measured:` block from the LLMServingSim tables of one GPU (`RTX4090`, attention file stem `rtx4090`)."""
    dense = table_of(data / "op_dense_rtx_llmservingsim.csv")
    dense = dense[(dense.gpu == gpu) & (dense.model == "Llama-3.1-8B") & (dense.tp == 1)]
    sequences = table_of(data / "op_perseq_rtx_llmservingsim.csv")
    sequences = sequences[(sequences.gpu == gpu) & (sequences.model == "Llama-3.1-8B")]
    head = sequences[sequences.layer == "lm_head"]
    products = dense[dense.layer.isin(list(GEMMS))].rename(columns={"tokens": "m", "time_us": "us"})
    products = products.assign(
        n=products.layer.map({name: n for name, (n, _) in GEMMS.items()}),
        k=products.layer.map({name: k for name, (_, k) in GEMMS.items()}),
    )
    head = head.rename(columns={"sequences": "m", "time_us": "us"}).assign(n=128256, k=4096)
    rows = _rows(pd.concat([products, head]), "m", "n", "k", "us")
    gemm = fit_gemm(rows)
    attention = table_of(data / f"op_attention_mixed_{stem}-llama3.1-8b-tp1_llmservingsim.csv")
    decode_table = attention[
        (attention.prefill_chunk == 0)
        & (attention.n_decode >= 4)
        & (attention.n_decode * attention.kv_decode > 500)
        & (attention.kv_decode <= 4096)
    ]
    decode = fit_decode(
        _rows(
            decode_table.rename(columns={"n_decode": "batch", "kv_decode": "context", "time_us": "us"}),
            "batch",
            "context",
            "us",
        ),
        KV_BYTES,
    )
    rate, token, error = _prefill_with_context(attention)
    small = _elementwise_us(dense)
    fixed = decode.start_s + float(small[0]) * 1e-6
    sampler = sequences[sequences.layer == "sampler"].sort_values("sequences")
    per_sample = (
        (sampler.time_us.iloc[-1] - sampler.time_us.iloc[0])
        / float(sampler.sequences.iloc[-1] - sampler.sequences.iloc[0])
        * 1e-6
    )
    return {
        "scaled_from": "h100-sxm",
        "gemm_start": entry_of("gemm_start", gemm.gemm.start_s, LSS, gemm.mean_error),
        "gemm_bandwidth": entry_of("gemm_bandwidth", gemm.gemm.bandwidth, LSS, gemm.mean_error),
        "gemm_rate": entry_of("gemm_rate", gemm.gemm.rate, LSS, gemm.mean_error),
        "gemm_exponent": entry_of("gemm_exponent", gemm.gemm.exponent, LSS, gemm.mean_error),
        "gemm_correction": _correction(dense, gemm.gemm.seconds),
        "layer_fixed": entry_of("layer_fixed", fixed, LSS, decode.mean_error),
        "elementwise_bandwidth": entry_of("elementwise_bandwidth", _elementwise_bandwidth(small), LSS, 0.1),
        "decode_bandwidth": entry_of("decode_bandwidth", decode.bandwidth, LSS, decode.mean_error),
        "decode_sequence": entry_of("decode_sequence", decode.sequence_s, LSS, decode.mean_error),
        "prefill_rate": entry_of("prefill_rate", rate, LSS, error),
        "prefill_token": entry_of("prefill_token", token, LSS, error),
        "sample_sequence": entry_of("sample_sequence", float(per_sample), LSS, 0.2),
    }


def _prefill_with_context(attention: pd.DataFrame) -> tuple[float, float, float]:
    """(rate, per token, mean error) of prefill alone, earlier context included, weighted to long chunks."""
    alone = attention[
        (attention.n_decode == 0) & (attention.prefill_chunk > 0) & (attention.kv_prefill <= 4096)
    ]
    tokens = alone.prefill_chunk.to_numpy(dtype=np.float64)
    pairs = tokens * alone.kv_prefill.to_numpy() + tokens * (tokens + 1) / 2
    us = alone.time_us.to_numpy()
    weight = np.sqrt(us)
    design = np.stack([np.ones_like(us), tokens, pairs], axis=1) / us[:, None] * weight[:, None]
    _, token, pair = np.linalg.lstsq(design, weight, rcond=None)[0]
    long = tokens >= 512
    error = np.abs((tokens * max(token, 0.0) + pairs * pair) / us - 1)[long].mean()
    return PAIR_FLOPS / (float(pair) * 1e-6), max(0.0, float(token)) * 1e-6, float(error)


def _elementwise_us(dense: pd.DataFrame) -> Array:
    """[us] of a layer's elementwise kernels at the smallest and at the largest token count."""
    totals = [
        sum(count * _at(dense, layer, tokens) for layer, count in SMALL_KERNELS.items())
        for tokens in (1, int(dense.tokens.max()))
    ]
    return np.array([*totals, float(dense.tokens.max())])


def _elementwise_bandwidth(small: Array) -> float:
    """[B/s] that the analytic traffic (cost.calibrated) needs for the measured slope."""
    return float(TRAFFIC * (small[2] - 1) / ((small[1] - small[0]) * 1e-6))


def _at(dense: pd.DataFrame, layer: str, tokens: int) -> float:
    rows = dense[dense.layer == layer].sort_values("tokens")
    return float(np.interp(tokens, rows.tokens, rows.time_us))


def _correction(dense: pd.DataFrame, seconds: Callable[[Array, int, int], Array]) -> dict[str, Any]:
    """Measured over formula for the four products of a layer together, by rows; 1 beyond is not assumed."""
    rows = np.unique(np.concatenate([[1, 2, 4], np.arange(8, 257, 16), np.arange(256, 2049, 64)]))
    measured = np.array([sum(_at(dense, layer, int(m)) for layer in GEMMS) for m in rows])
    formula = sum(seconds(rows.astype(np.float64), n, k) for n, k in GEMMS.values()) * 1e6
    points = [[int(m), round(float(r), 4)] for m, r in zip(rows, measured / formula, strict=True)]
    return {"points": points, "unit": "[rows, ratio]", "mark": "measured", "source": LSS}


def entry_of(key: str, value: float, source: str, error: float) -> dict[str, Any]:
    unit, factor = UNITS[key]
    return {
        "value": float(f"{value / factor:.5g}"),
        "unit": unit,
        "mark": "fitted",
        "source": source,
        "error_pct": round(100 * float(error), 2),
    }


def _rows(table: pd.DataFrame, *columns: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = table[list(columns)].to_dict("records")  # type: ignore[assignment]
    return records


def table_of(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: not a readable CSV: {error}") from error


def load_public_run(data: Path, case: str) -> MeasuredRun:
    """A run of LLMServingSim's benchmark (`rtx4090-llama-3.1-8b`, `rtxpro6000-llama-3.1-8b`) as a MeasuredRun.

    `data` is the folder with llmservingsim_bench_*.csv. Times count from the engine's queue, as measured
    there; `cached_tokens` is the ideal prefix hit, an input.
    """
    summary = table_of(data / "llmservingsim_bench_summary.csv").set_index("case_id")
    requests = table_of(data / "llmservingsim_bench_requests.csv")
    requests = requests[requests.case_id == case]
    if requests.empty or case not in summary.index:
        raise CalibrationError(f"{data}: no case {case!r}; there are {', '.join(map(str, summary.index))}")
    row = {str(key): value for key, value in summary.loc[case].to_dict().items()}
    blocks: int | None = None if pd.isna(row["kv_blocks_gpu"]) else int(row["kv_blocks_gpu"])
    engine = EngineSettings(
        "vllm",
        "0.19.0",
        int(row["max_num_seqs"]),
        int(row["max_num_batched_tokens"]),
        int(row["tp"]),
        None,
        int(row["block_size"]),
        blocks,
        blocks,
        None,
        float(row["gpu_memory_utilization"]),
    )
    table = pd.DataFrame(
        {
            "id": requests.req_idx,
            "arrival_s": requests.arrival_actual_s + requests.arrival_to_queued_ms / 1e3,
            "prompt_tokens": requests.prompt_tokens,
            "output_tokens": requests.output_tokens,
            "cached_tokens": requests.prefix_hit_tokens_ideal,
            "ttft_s": requests.ttft_ms / 1e3,
            "tpot_s": requests.tpot_ms / 1e3,
            "e2e_s": requests.e2e_ms / 1e3,
            "peer_ttft_s": requests.llmservingsim_ttft_ms / 1e3,
        }
    )
    table = table.sort_values("arrival_s", kind="stable", ignore_index=True)
    gpu = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}[str(row["gpu"])]
    return MeasuredRun(
        data / case, engine, gpu, MODEL_DIR / "llama-3.1-8b.json", "open", 0, table, None, {}
    )


def fit_step_fixed(run: MeasuredRun, requests: int = 30, highest_us: float = 5000.0) -> float:
    """[us] per step that brings the mean TPOT of the first `requests` requests to the measured one, 0 at least.

    Layer times alone leave out what an engine adds to every step on that host. The rest of the run is left
    to test.
    """
    setup = setup_of(run)
    wanted = float(run.requests.tpot_s.iloc[:requests].mean())
    low, high = 0.0, highest_us
    for _ in range(10):
        middle = (low + high) / 2
        found = predict(run, Profiles(with_values(setup.gpu, {"step_fixed": middle}), setup.engine, setup.model))
        outputs = run.requests.output_tokens.to_numpy()[:requests] - 1
        tpot = float(np.mean((found.last_s - found.first_s)[:requests] / outputs))
        low, high = (middle, high) if tpot < wanted else (low, middle)
    return low


VLLM_REDUCE_LIMIT: Final = {2: 8 * 2**20, 4: 8 * 2**20, 8: 2**18}
"""[bytes] below which vLLM takes its own all-reduce on Hopper, by GPUs: the least of CustomAllreduce.max_size (8 MiB)
and CUSTOM_ALL_REDUCE_MAX_SIZES (vllm/distributed/device_communicators); NCCL from there."""


def vllm_reduce_entry(data: Path, gpus: int, stem: str = "h100") -> dict[str, Any]:
    """Profile entry `all_reduce_N`: vLLM's own kernel in a CUDA graph up to its limit, NCCL above, from the
    aiconfigurator table `op_allreduce_{stem}_aic.csv` in `data`."""
    table = table_of(data / f"op_allreduce_{stem}_aic.csv")
    rows = table[(table.kernel == "vLLM_custom_graph") & (table.op == "all_reduce") & (table.num_gpus == gpus)]
    rows = rows[(rows.size_bytes >= 2048) & (rows.size_bytes <= 2**28)].sort_values("size_bytes")
    points = [(int(size), round(float(us), 2)) for size, us in zip(rows.size_bytes, rows.latency_us, strict=True)]
    limit = VLLM_REDUCE_LIMIT[gpus]
    below = [point for point in points if point[0] < limit]
    (size, us), (before, less) = below[-1], below[-2]
    edge = (limit - 1, round(us + (limit - size) * (us - less) / (size - before), 2))
    above = [point for point in points if point[0] >= limit]
    return {
        "points": [list(point) for point in (*below, edge, *above)],
        "unit": "[bytes, us]",
        "mark": "measured",
        "source": f"{AIC}; vLLM all-reduce in a CUDA graph below {limit // 1024} KiB (its last doubling extrapolated), "
        "NCCL above",
    }
