"""Static batching: a group starts together and holds every slot until its longest answer ends.

A batch is taken from the queue when the replica is empty: as soon as somebody waits, or, with a batch window,
when the batch is full or its first request has waited that long. All its prompts are prefilled in one step, then
it decodes until the last has ended. KV memory is set aside for the longest prompt + max_tokens, for every slot.
With `stream` off, the batch is returned whole at its end. `length_bucket` batches only prompts of one bucket
(prompt // bucket); max_num_seqs = 1 serves one at a time.

With `preferred_batch_sizes` a batch of the largest of them that enough wait for starts at once; only where too few wait
for the smallest does the window count, and then all that wait go: the dynamic batcher of NVIDIA Triton Inference Server
(preferred_batch_size, max_queue_delay_microseconds; user guide, "Batchers", 2025).

`padding` says what is computed for nobody. "naive", the default: prompts are padded to the longest of the batch,
and ended rows decode on, over a context as long as the longest. "removed": nothing; only the slots stay held.
"fastertransformer" is between: its `remove_padding` ("Remove the padding of input ids or not in context phase",
docs/gpt_guide.md, constructor argument 32) spares padded prompt tokens everywhere but in the attention, which is
computed over the padded batch unless FMHA_ENABLE is on (layers/attention_layers/GptContextAttentionLayer.cc; guide,
inference options); a decode step has every row of the batch (models/multi_gpu_gpt/ParallelGptDecoder.cc, forward) but
returns from the attention of ended ones, and reads padding among the context of the others, masked
(kernels/decoder_masked_multihead_attention_template.hpp). Sources of NVIDIA/FasterTransformer, main, 2023.

This is request-level scheduling as described in Yu et al., OSDI 2022, section 3.1 (figure 3), with naive padding
unless `padding` says otherwise.
"""

from typing import Final

from policies.queues import admit, held, lane_planned, plan, retire_finished, run_lane, take_after, wanted
from simulator.jit import jitable
from simulator.kv import grow
from simulator.state import FINISHED, RUNNING, Column, Limits, Replica, Requests

NAIVE, FASTER_TRANSFORMER, REMOVED = 0, 1, 2
PADDINGS: Final = {"naive": NAIVE, "fastertransformer": FASTER_TRANSFORMER, "removed": REMOVED}
"""Values of the knob `padding`, as Limits has them."""
SIZES: Final = 2**20
"""Limits.preferred_sizes: sizes below this, the largest first, one digit each."""
MOST_SIZES: Final = 3
PADDED_PROMPT = 0
"""aux: longest prompt of the batch [tokens]."""


@jitable
def schedule(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Start a batch when the replica is empty, else plan the next token of all that are not done."""
    if held(rep) == 0:
        if rep.c.n_waiting > 0 and _window_is_over(req, rep, lim):
            _start(req, rep, lim, aux)
    else:
        _decode(req, rep, lim, aux)


@jitable
def _window_is_over(req: Requests, rep: Replica, lim: Limits) -> bool:
    """True when the batch is full or its first request has waited the window; else ask to be woken then."""
    deadline = req.queued[rep.c.head] + lim.batch_window
    if deadline <= rep.c.now:
        return True
    count = _candidates(req, rep, lim)
    if count >= lim.max_num_seqs or preferred(lim, count) > 0:
        return True
    rep.c.wake = deadline
    return False


@jitable
def _candidates(req: Requests, rep: Replica, lim: Limits) -> int:
    """Waiting requests that may share a batch with the first: those of its length bucket."""
    if lim.length_bucket == 0:
        return int(rep.c.n_waiting)
    first = rep.c.head
    count = 0
    i = first
    while i >= 0:
        if req.prompt[i] // lim.length_bucket == req.prompt[first] // lim.length_bucket:
            count += 1
        i = req.next[i]
    return count


@jitable
def preferred(lim: Limits, count: int) -> int:
    """The largest preferred size of a batch that `count` requests can form, 0 = none."""
    packed = lim.preferred_sizes
    while packed > 0:
        size = packed % SIZES
        if size <= count:
            return size
        packed //= SIZES
    return 0


@jitable
def _start(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Admit the batch from the queue and plan its prefill."""
    first = rep.c.head
    before = -1
    longest = 0
    limit = 0
    most = lim.max_num_seqs
    if lim.preferred_sizes > 0:
        size = preferred(lim, _candidates(req, rep, lim))
        most = size if size > 0 else most
    while rep.c.n_running < most:
        i = rep.c.head if before < 0 else req.next[before]
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
    if lim.padding != REMOVED:
        _pad_prefill(req, rep, lim, longest)


@jitable
def _set_aside(req: Requests, rep: Replica, lim: Limits, i: int, tokens: int) -> bool:
    """KV memory of `tokens` tokens for request i and for all that are in the batch; False leaves i out."""
    for k in range(rep.c.n_running):
        if not grow(req, rep, lim, rep.running[k], tokens, 0):
            return False
    return grow(req, rep, lim, i, tokens, 0)


@jitable
def _pad_prefill(req: Requests, rep: Replica, lim: Limits, longest: int) -> None:
    """Padding of the prefill: tokens and causal query-key pairs beyond the real ones."""
    for k in range(rep.c.n_batch):
        prompt = req.prompt[rep.batch[k]]
        if lim.padding == NAIVE:
            rep.c.pad_tokens += longest - prompt
        rep.c.pad_pairs += longest * (longest + 1) // 2 - prompt * (prompt + 1) // 2


@jitable
def _decode(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """One token for each sequence not done, and padding for the slots of the others."""
    run_lane(rep, lim, 0)
    real = rep.c.lane_context
    padded = aux[PADDED_PROMPT] + lane_planned(req, rep)
    for k in range(rep.c.n_running):
        i = rep.running[k]
        if req.status[i] == RUNNING and wanted(req, i) > 0:
            plan(rep, i, 1)
            real += req.computed[i] + 1
            padded = aux[PADDED_PROMPT] + req.planned[i]
    rows = rep.c.n_batch + rep.c.lane
    if rows > 0 and lim.padding != REMOVED:
        rep.c.pad_rows = held(rep) - rows
        wide = held(rep) if lim.padding == NAIVE else rows
        rep.c.pad_context = wide * padded - real
        if wide < held(rep):
            rep.c.hold = 0  # the context grows by fewer tokens than the step has rows: the policy plans every step


@jitable
def retire(req: Requests, rep: Replica, lim: Limits, aux: Column) -> None:
    """Free the batch when its last sequence has ended; without streaming everybody is answered only now.

    N_ENDED becomes the number of answers given, so that a closed client does not go on before it has its own.
    """
    unfinished = rep.c.lane
    for k in range(rep.c.n_running):
        if req.status[rep.running[k]] != FINISHED:
            unfinished += 1
    if unfinished > 0:
        if lim.stream == 0:
            rep.c.n_ended = 0
        return
    if lim.stream == 0:
        rep.c.n_ended = rep.c.n_running
        for k in range(rep.c.n_running):
            i = rep.running[k]
            rep.ended[k] = i
            req.first[i] = rep.c.visible
            req.last[i] = rep.c.visible
    retire_finished(req, rep, lim)
