"""What clients lived through beside their answers' times: conversations, and the wait for a place in flight."""

from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.metrics.latency import Fates, describe
from simulator.state import FINISHED, NOT_SENT
from simulator.workload.extras import NONE

if TYPE_CHECKING:
    from simulator.result import Result

Block = dict[str, Any]


def clients(result: "Result", fate: Fates) -> Block:
    """{"sessions": ..., "intended": ...}, each where the run has it."""
    block: Block = {}
    if result.trace.extras.session is not None and result.trace.extras.turn is not None:
        block["sessions"] = _sessions(result)
    if result.scenario.load.max_in_flight is not None:
        block["intended"] = _intended(result, fate)
    return block


def _sessions(result: "Result") -> Block:
    req, extras = result.requests, result.trace.extras
    assert extras.session is not None
    known = extras.session != NONE
    order, same = extras.in_turns()
    before, after = order[:-1][same], order[1:][same]
    early = (req.status[before] == FINISHED) & (req.status[after] == FINISHED) & (req.arrival[after] < req.last[before])
    return {"sessions": int(np.unique(extras.session[known]).size), "turns": int(np.count_nonzero(known)),
            "overlapping": int(np.count_nonzero(early)),
            "broken_off": int(np.unique(extras.session[req.status == NOT_SENT]).size)}


def _intended(result: "Result", fate: Fates) -> Block:
    """From the trace's arrival of every measured request: the wait for its submission, the first token, the end."""
    req, intended = result.requests, result.trace.arrival_ns
    done = fate.measured & fate.completed
    missing = int(np.count_nonzero(fate.measured & ~fate.completed))
    times = {"client_wait_s": (req.arrival, fate.measured, 0), "ttft_s": (req.first, done, missing),
             "e2e_s": (req.last, done, missing)}
    return {name: describe((column[rows] - intended[rows]).astype(np.float64), absent)
            for name, (column, rows, absent) in times.items()}
