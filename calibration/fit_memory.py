"""Fit what vLLM 0.24 keeps back: workspace, graphs and collectives, from KV block counts that it printed.

Three numbers for all models, GPUs and limits (profiles.reserve has the formula): least squares of what the counts of
kv_blocks.csv marked `fit` leave, each in terms of its own KV cache. Counts marked `judge` are met without.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from simulator.errors import CalibrationError
from simulator.profiles.capacity import KvCapacity, kv_capacity
from simulator.profiles.engine import EngineProfile, load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.units import GIB, MIB


@dataclass(frozen=True)
class MemoryFit:
    """Bytes kept back besides weights and the peak of the profiling run."""

    graph_layer_bytes: float
    workspace_bytes: float
    collective_bytes: float


def kv_counts(measurements: Path) -> pd.DataFrame:
    """Block counts that engines printed, with the settings they ran under. Raises CalibrationError."""
    path = measurements / "kv_blocks.csv"
    try:
        return pd.read_csv(path).fillna({"draft": ""})
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: not a readable table of block counts: {error}") from error


def counted(row: pd.Series, engine: EngineProfile, measurements: Path) -> KvCapacity:
    """The memory model under the settings of one row of `kv_counts`."""
    own = measurements / "models" / f"{row.model}.config.json"
    draft = load_model(measurements / "models" / f"{row.draft}.config.json") if row.draft else None
    return kv_capacity(
        load_gpu(row.gpu), engine, load_model(own if own.is_file() else row.model), int(row["count"]),
        row.weight_dtype, row.kv_dtype, int(row.max_num_seqs), int(row.max_num_batched_tokens),
        float(row.gpu_memory_utilization), draft=draft, draft_tokens=int(row.draft_tokens),
        compile_cache=row.start == "later")


def fit_memory(measurements: Path) -> MemoryFit:
    """Workspace, memory of a graph per layer and of collectives that meet the counts of kv_blocks.csv best."""
    rows = kv_counts(measurements)
    kept, known, used = [], [], []
    for _, row in rows[rows.use == "fit"].iterrows():
        engine = load_engine(row.engine).replace(
            workspace_bytes=0.0, graph_layer_memory_bytes=0.0, collective_workspace_bytes=0.0)
        bare = counted(row, engine, measurements)
        used.append((row.tokens / bare.block_size + 1.5) * bare.block_bytes)
        kept.append(bare.kv_bytes - used[-1])
        graphs = counted(row, engine.replace(graph_layer_memory_bytes=float(MIB)), measurements).graph_bytes
        known.append((GIB, graphs, GIB if row["count"] > 1 else 0))
    scale = np.array(used)
    found, *_ = np.linalg.lstsq(np.array(known) / scale[:, None], np.array(kept) / scale, rcond=None)
    workspace, graph, collectives = (float(each) for each in found)
    return MemoryFit(graph * MIB, workspace * GIB, collectives * GIB)
