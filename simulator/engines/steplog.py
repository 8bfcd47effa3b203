"""The step log: one row for a run of equal steps, columns in state.LOG_FIELDS."""

from simulator.engines.clients import LOG_ROWS
from simulator.jit import jitable
from simulator.state import (
    LOG_ROW,
    LOG_VERSION,
    NOW,
    S_CONTEXT,
    S_DECODE,
    S_PAD_ROWS,
    S_PAIRS,
    S_PLAIN,
    S_PREFILL,
    S_PREFILL_TOKENS,
    S_RUNNING,
    S_START,
    S_VERSION,
    S_WAITING,
    Column,
    Replica,
)


@jitable
def log_step(log: Column, ctl: Column, rep: Replica, r: int, step: Column, wall: int, count: int, blocks: int,
             kv_tokens: int, gpu: int) -> None:
    """Write `count` equal steps that ended now into the step log, extending the replica's last row if it fits.

    `blocks` and `kv_tokens` are those of the last step, `gpu` and `wall` sums [ns]. Rows are merged when both
    are the same pure decode: same sequences, nobody arriving or leaving between.
    """
    row = rep.c[LOG_ROW]
    fits = row >= 0 and step[S_PLAIN] == 1 and rep.c[LOG_VERSION] == step[S_VERSION] \
        and log[row][4] == step[S_DECODE] and log[row][6] == 0 and log[row][9] == step[S_RUNNING]
    if not fits:
        row = ctl[LOG_ROWS]
        ctl[LOG_ROWS] = row + 1
        log[row][0] = r
        log[row][1] = step[S_START]
        log[row][3] = 0
        log[row][4] = step[S_DECODE]
        log[row][5] = step[S_CONTEXT]
        log[row][6] = step[S_PREFILL]
        log[row][7] = step[S_PREFILL_TOKENS]
        log[row][8] = step[S_PAIRS]
        log[row][9] = step[S_RUNNING]
        log[row][10] = step[S_WAITING]
        log[row][13] = 0
        log[row][14] = 0
        log[row][15] = step[S_PAD_ROWS]
        rep.c[LOG_ROW] = row
        rep.c[LOG_VERSION] = step[S_VERSION] if step[S_PLAIN] == 1 else -1
    log[row][2] = rep.c[NOW]
    log[row][3] += count
    log[row][11] = blocks
    log[row][12] = kv_tokens
    log[row][13] += gpu
    log[row][14] += wall
