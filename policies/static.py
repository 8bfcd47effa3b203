"""Static batching: a group starts together and holds every slot until its longest answer ends.

A batch is taken from the queue when the replica is empty: as soon as somebody waits, or, with a batch window,
when the batch is full or its first request has waited that long. Prompts are padded to the longest of the
batch and prefilled in one step; then every slot decodes, finished ones included, until the last has ended.
KV memory is set aside for padded prompt + max_tokens. With `stream` off, the batch is returned whole at its end.
`length_bucket` batches only prompts of one bucket (prompt // bucket); max_num_seqs = 1 serves one at a time.

This is request-level scheduling as described in Yu et al., OSDI 2022, section 3.1 (figure 3).
"""

from policies.queues import admit, plan, retire_finished, take_after, wanted
from simulator.jit import jitable
from simulator.kv import grow
from simulator.state import (
    FINISHED,
    HEAD,
    N_BATCH,
    N_ENDED,
    N_RUNNING,
    N_WAITING,
    NOW,
    PAD_CONTEXT,
    PAD_PAIRS,
    PAD_ROWS,
    PAD_TOKENS,
    RUNNING,
    VISIBLE,
    WAKE,
    Column,
    Limits,
    Replica,
    Requests,
)

PADDED_PROMPT = 0
"""aux: longest prompt of the batch [tokens]."""


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Start a batch when the replica is empty, else plan the next token of all that are not done."""
    if rep.c[N_RUNNING] == 0:
        if rep.c[N_WAITING] > 0 and _window_is_over(req, rep, lim):
            _start(req, rep, lim, aux)
    else:
        _decode(req, rep, aux)


@jitable
def _window_is_over(req: Requests, rep: Replica, lim: Limits) -> bool:
    """True when the batch is full or its first request has waited the window; else ask to be woken then."""
    deadline = req.queued[rep.c[HEAD]] + lim.batch_window
    if deadline <= rep.c[NOW] or _candidates(req, rep, lim) >= lim.max_num_seqs:
        return True
    rep.c[WAKE] = deadline
    return False


@jitable
def _candidates(req: Requests, rep: Replica, lim: Limits) -> int:
    """Waiting requests that may share a batch with the first: those of its length bucket."""
    if lim.length_bucket == 0:
        return int(rep.c[N_WAITING])
    first = rep.c[HEAD]
    count = 0
    i = first
    while i >= 0:
        if req.prompt[i] // lim.length_bucket == req.prompt[first] // lim.length_bucket:
            count += 1
        i = req.next[i]
    return count


@jitable
def _start(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Admit the batch from the queue and plan its padded prefill."""
    first = rep.c[HEAD]
    before = -1
    longest = 0
    limit = 0
    while rep.c[N_RUNNING] < lim.max_num_seqs:
        i = rep.c[HEAD] if before < 0 else req.next[before]
        if i < 0:
            break
        if lim.length_bucket > 0 and req.prompt[i] // lim.length_bucket != req.prompt[first] // lim.length_bucket:
            before = i
            continue
        padded = max(longest, req.prompt[i])
        asked = max(limit, req.limit[i])
        if not _set_aside(req, rep, lim, i, padded + asked):
            break
        longest, limit = padded, asked
        take_after(req, rep, before)
        admit(req, rep, i)
        plan(rep, i, req.prompt[i])
    aux[PADDED_PROMPT] = longest
    _pad_prefill(req, rep, longest)


@jitable
def _set_aside(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int) -> bool:
    """KV memory of `tokens` tokens for request i and for all that are in the batch; False leaves i out."""
    for k in range(rep.c[N_RUNNING]):
        if not grow(req, rep, lim, rep.running[k], tokens, 0):
            return False
    return grow(req, rep, lim, i, tokens, 0)


@jitable
def _pad_prefill(req: Requests, rep: Replica, longest: int) -> None:
    """Padding of the prefill: tokens and causal query-key pairs beyond the real ones."""
    for k in range(rep.c[N_BATCH]):
        prompt = req.prompt[rep.batch[k]]
        rep.c[PAD_TOKENS] += longest - prompt
        rep.c[PAD_PAIRS] += longest * (longest + 1) // 2 - prompt * (prompt + 1) // 2


@jitable
def _decode(req: Requests, rep: Replica, aux: Column) -> None:
    """One token for each sequence not done; the slots of the others are computed as padding."""
    real = 0
    padded = 0
    for k in range(rep.c[N_RUNNING]):
        i = rep.running[k]
        if req.status[i] == RUNNING and wanted(req, i) > 0:
            plan(rep, i, 1)
            real += req.computed[i] + 1
            padded = aux[PADDED_PROMPT] + req.planned[i]
    if rep.c[N_BATCH] > 0:
        rep.c[PAD_ROWS] = rep.c[N_RUNNING] - rep.c[N_BATCH]
        rep.c[PAD_CONTEXT] = rep.c[N_RUNNING] * padded - real


@jitable
def retire(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Free the batch when its last sequence has ended; without streaming everybody is answered only now.

    N_ENDED becomes the number of answers given, so that a closed client does not go on before it has its own.
    """
    for k in range(rep.c[N_RUNNING]):
        if req.status[rep.running[k]] != FINISHED:
            if lim.stream == 0:
                rep.c[N_ENDED] = 0
            return
    if lim.stream == 0:
        rep.c[N_ENDED] = rep.c[N_RUNNING]
        for k in range(rep.c[N_RUNNING]):
            i = rep.running[k]
            req.first[i] = rep.c[VISIBLE]
            req.last[i] = rep.c[VISIBLE]
    retire_finished(req, rep, lim)
