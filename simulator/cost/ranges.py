"""What a calibrated prediction stands on, in words: components not measured on this GPU, sizes beyond the fit.

Reports print these lines beside their numbers.
"""

from typing import Final

from simulator.cost.gpu_times import gpu_times
from simulator.profiles.gpu import Gpu

FITTED_SEQUENCES: Final = 128
"""Largest decode batch in the step logs behind hwprofiles/gpu/h100-sxm.yaml."""
FITTED_TOKENS: Final = 2048
"""Largest step there; products alone were measured up to 8,192 rows."""
MEASURED_ROWS: Final = 8192
FITTED_CONTEXT: Final = 32768
"""[tokens] longest context that decode attention was measured with."""


def extrapolations(
    gpu: Gpu, tp: int, max_num_seqs: int, max_num_batched_tokens: int, longest: int
) -> list[str]:
    """Sentences on what lies outside measurements; empty where nothing does.

    `longest`: prompt + output of the longest request [tokens].
    """
    times = gpu_times(gpu)
    notes = []
    scaled = sorted(key for key, mark in times.marks.items() if mark.startswith("scaled"))
    if scaled:
        source = times.marks[scaled[0]].removeprefix("scaled from ")
        notes.append(
            f"{gpu.name}: {len(scaled)} of {len(times.marks)} operator times are scaled from {source}"
        )
    if tp > 1 and tp not in times.all_reduce:
        notes.append(
            f"{gpu.name}: no all-reduce over {tp} GPUs was measured; the ring formula on its link stands in"
        )
    if max_num_seqs > FITTED_SEQUENCES:
        notes.append(
            f"batches above {FITTED_SEQUENCES} sequences are extrapolated (limit set: {max_num_seqs})"
        )
    if max_num_batched_tokens > MEASURED_ROWS:
        notes.append(
            f"steps above {MEASURED_ROWS} tokens are extrapolated (limit set: {max_num_batched_tokens})"
        )
    elif max_num_batched_tokens > FITTED_TOKENS:
        notes.append(
            f"steps above {FITTED_TOKENS} tokens rest on products measured alone, not on an engine's log"
        )
    if longest > FITTED_CONTEXT:
        notes.append(f"contexts above {FITTED_CONTEXT} tokens are extrapolated (longest request: {longest})")
    return notes
