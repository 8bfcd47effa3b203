"""How unequal the contexts are that decode steps of a workload read: what decode attention loses time by."""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.workload.arrivals import Arrivals
from simulator.workload.generate import Generated, generate_trace
from simulator.workload.spec import Inline, Workload

Whole = npt.NDArray[np.int64]

ALL: Final = 1.0
DRAWN: Final = Arrivals(kind="burst", requests=2000)
"""What is drawn of a generated workload to see its lengths, whatever its seed."""


def unequal(workload: Workload) -> float:
    """From 0, contexts all alike, to 1 (`spread`); those of requests of one length differ by how far the answers are.
    Requests of a file and conversations count as unequal: those that were measured are (both Azure traces 1.0)."""
    if isinstance(workload, Generated):
        drawn = generate_trace(replace(workload, arrivals=DRAWN), seed=0)
        return spread(drawn.prompt, drawn.output)
    if isinstance(workload, Inline):
        output = np.asarray(workload.output, dtype=np.int64)
        return spread(np.broadcast_to(np.asarray(workload.prompt, dtype=np.int64), output.shape), output)
    return ALL


def spread(prompt: Whole, output: Whole, together: bool = False) -> float:
    """Standard deviation over mean of the contexts in a step, at most 1: of each request the prompt and, at a moment
    of its answer like any other, half the answer more or less. `together`: all are at the same place of theirs.

    That the loss grows with it, from none at 0 to that measured at 1, is assumed; so is 1 for a single request, beside
    which others may come.
    """
    if prompt.size < 2:
        return ALL
    context = prompt + output / 2.0
    within = 0.0 if together else float(np.mean(output.astype(np.float64) ** 2)) / 12.0
    return min(ALL, float(np.sqrt(np.var(context) + within)) / max(float(np.mean(context)), 1.0))
