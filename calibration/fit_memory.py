"""Fit what an engine keeps back: workspace and graph memory, from KV block counts that engines printed.

Two numbers for all models, GPUs and limits (profiles.capacity has the formula): the engine's own estimate of its
graphs is coarse (it captures two of them), so counts of one model scatter by half a GiB, and the largest error in
terms of what each count is to be met within is made as small as it gets (a linear program).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.fit_operators import scipy_part
from simulator.errors import CalibrationError
from simulator.profiles.capacity import KvCapacity, kv_capacity
from simulator.profiles.engine import EngineProfile, load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.units import GIB, MIB


@dataclass(frozen=True)
class MemoryFit:
    """Bytes kept back besides weights and activations."""

    graph_layer_bytes: float
    workspace_bytes: float


def kv_counts(measurements: Path) -> pd.DataFrame:
    """Block counts that engines printed, with the settings they ran under. Raises CalibrationError."""
    path = measurements / "kv_blocks.csv"
    try:
        return pd.read_csv(path).fillna({"draft": ""})
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: not a readable table of block counts: {error}") from error


def counted(row: pd.Series, engine: EngineProfile, measurements: Path) -> KvCapacity:
    """The memory model under the settings of one row of `kv_counts`."""
    draft = load_model(measurements / "models" / f"{row.draft}.config.json") if row.draft else None
    return kv_capacity(
        load_gpu(row.gpu), engine, load_model(row.model), int(row["count"]), row.weight_dtype, row.kv_dtype,
        int(row.max_num_seqs), int(row.max_num_batched_tokens), float(row.gpu_memory_utilization), draft=draft,
        draft_tokens=int(row.draft_tokens))


def fit_memory(measurements: Path) -> MemoryFit:
    """Workspace and graph memory per layer and captured size that meet the counts of kv_blocks.csv best."""
    rows = kv_counts(measurements)
    kept, graphs, allowed = [], [], []
    for _, row in rows.iterrows():
        engine = load_engine(row.engine).replace(workspace_bytes=0.0, graph_layer_memory_bytes=0.0)
        bare = counted(row, engine, measurements)
        used = (row.tokens / bare.block_size + 1.5) * bare.block_bytes
        kept.append(bare.kv_bytes - used)
        graphs.append(counted(row, engine.replace(graph_layer_memory_bytes=float(MIB)), measurements).graph_bytes)
        allowed.append(used * row.within_pct / 100)
    target, scale = np.array(kept) / GIB, np.array(allowed)[:, None] / GIB
    known = np.stack([np.ones(len(rows)), np.array(graphs) / GIB], axis=1)
    # smallest z with |known x - target| <= z scale
    bound = np.vstack([np.hstack([known, -scale]), np.hstack([-known, -scale])])
    found = scipy_part("optimize").linprog([0, 0, 1], A_ub=bound, b_ub=np.concatenate([target, -target]))
    if not found.success:
        raise CalibrationError(f"{measurements / 'kv_blocks.csv'}: no fit of the memory kept back: {found.message}")
    return MemoryFit(float(found.x[1]) * MIB, float(found.x[0]) * GIB)
