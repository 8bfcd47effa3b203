"""The step log: one row for a run of equal steps, columns in state.LOG_FIELDS."""

from simulator.jit import jitable
from simulator.records import Control
from simulator.state import Column, Replica


@jitable
def log_step(log: Column, ctl: Control, rep: Replica, r: int, step: Column, wall: int) -> None:
    """Write a step of `wall` ns that ended now into the step log, extending replica r's last row if it fits.

    Rows are merged when both are the same pure decode: same sequences, nobody arriving or leaving between.
    """
    row = rep.c.log_row
    fits = row >= 0 and step.plain == 1 and rep.c.log_version == step.version \
        and log[row].decode == step.decode and log[row].prefill == 0 and log[row].running == step.running
    if not fits:
        row = ctl.log_rows
        ctl.log_rows = row + 1
        log[row].replica = r
        log[row].start = step.start
        log[row].steps = 0
        log[row].decode = step.decode
        log[row].context = step.context
        log[row].prefill = step.prefill
        log[row].prefill_tokens = step.prefill_tokens
        log[row].pairs = step.pairs
        log[row].running = step.running
        log[row].waiting = step.waiting
        log[row].gpu_ns = 0
        log[row].wall_ns = 0
        log[row].pad_rows = step.pad_rows
        log[row].drafts = step.drafts
        rep.c.log_row = row
        rep.c.log_version = step.version if step.plain == 1 else -1
    log[row].end = rep.c.now
    log[row].steps += 1
    log[row].blocks = step.blocks
    log[row].kv_tokens = step.kv_tokens
    log[row].gpu_ns += step.gpu_ns
    log[row].wall_ns += wall
