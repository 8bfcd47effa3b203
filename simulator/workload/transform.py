"""Traces from traces: sort, time window, rate, superposed copies, output limit. Inputs are left unchanged."""

from dataclasses import replace
from typing import Final

import numpy as np

from simulator.errors import ConfigError, TraceError
from simulator.memory import check_requests
from simulator.units import LONGEST_S, MAX_TICKS, NS_PER_S, to_ticks

from .extras import Extras
from .streams import stream
from .trace import MAX_TOKENS, Int64s, Trace, freeze

_MOST: Final = 10**9
"""Most requests of a superposed trace."""
OUTSIDE_WINDOW: Final = "outside start_s..end_s"


def _counted(trace: Trace, reason: str, rows: int) -> Trace:
    """Add `rows` dropped for `reason` to the trace's account."""
    if rows == 0:
        return trace
    dropped = dict(trace.meta.rows_dropped)
    dropped[reason] = dropped.get(reason, 0) + rows
    return replace(trace, meta=replace(trace.meta, rows_dropped=dropped))


def window(trace: Trace, start_s: float | None, end_s: float | None) -> Trace:
    """Requests with start_s <= arrival - first arrival < end_s [s]; with start_s given, start_s becomes time 0.

    Raises ConfigError for an empty or negative window, TraceError when nothing arrives in it.
    """
    if start_s is None and end_s is None:
        return trace
    low, high = start_s or 0.0, np.inf if end_s is None else end_s
    if not 0 <= low < high:
        raise ConfigError(f"{trace.meta.source}: need 0 <= start_s < end_s, got {start_s} and {end_s}")
    first = int(trace.arrival_ns[0])
    begin, end = first + to_ticks(min(low, LONGEST_S)), MAX_TICKS + 1
    if high <= LONGEST_S:
        end = first + to_ticks(high)
    left, right = np.searchsorted(trace.arrival_ns, [begin, end], side="left")
    if left == right:
        raise TraceError(
            f"{trace.meta.source}: empty trace: no arrival between start_s {low} and end_s {high}; the trace "
            f"spans {trace.span_ns / NS_PER_S:.3f} s"
        )
    part = _counted(trace.take(slice(int(left), int(right))), OUTSIDE_WINDOW, len(trace) - int(right - left))
    return part if start_s is None else _at(part, part.arrival_ns - begin)


def _at(trace: Trace, arrival_ns: Int64s) -> Trace:
    return replace(trace, arrival_ns=freeze(np.ascontiguousarray(arrival_ns, dtype=np.int64)))


def with_lengths(trace: Trace, prompt: Int64s, output: Int64s, max_tokens: Int64s) -> Trace:
    """The requests with other lengths [tokens]: at most the whole prompt is cached, the limit at least the output."""
    return replace(trace, prompt=freeze(prompt), output=freeze(output), cached=freeze(np.minimum(trace.cached, prompt)),
                   max_tokens=freeze(np.maximum(output, max_tokens)))


def head(trace: Trace, limit: int, reason: str) -> Trace:
    """The first `limit` requests; the rest is counted under `reason`."""
    return trace if len(trace) <= limit else _counted(trace.take(slice(0, limit)), reason, len(trace) - limit)


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Arrivals `factor` times as fast: gaps divided by it, the first arrival stays. Raises ConfigError for <= 0."""
    if not (np.isfinite(factor) and factor > 0):
        raise ConfigError(f"{trace.meta.source}: rate_scale must be > 0, got {factor}")
    if factor == 1:
        return trace
    first = int(trace.arrival_ns[0])
    if first + trace.span_ns / factor > MAX_TICKS:
        raise ConfigError(f"{trace.meta.source}: rate_scale {factor} goes beyond {MAX_TICKS} ns")
    slower = _at(trace, first + np.rint((trace.arrival_ns - first) / factor).astype(np.int64))
    return replace(slower, meta=replace(slower.meta, rate_scale=slower.meta.rate_scale * factor))


def with_own_rate(trace: Trace) -> Trace:
    """The trace with its mean rate in `meta.log_per_s`, before another is made of it; one that stands there stays."""
    if trace.meta.log_per_s or not trace.span_ns:
        return trace
    return replace(trace, meta=replace(trace.meta, log_per_s=(len(trace) - 1) * NS_PER_S / trace.span_ns))


def superpose(trace: Trace, copies: int, shift_s: float | None = None, seed: int = 0, replication: int = 0) -> Trace:
    """`copies` copies of the trace at once, for `copies` times its rate with its own burstiness.

    Each copy is turned within a period of span + one mean gap: nothing falls off the end, and the mean rate is
    `copies` times the trace's. By how much is drawn, another turn for every copy, seed and replication; with shift_s
    copy k is turned by k * shift_s [s], the same always. Copy k's ids are raised by k * (largest id + 1). Ties are
    ordered by copy, then row.
    Raises ConfigError for copies < 1, a negative shift, or shifts that put two copies on top of each other.
    """
    if copies < 1:
        raise ConfigError(f"{trace.meta.source}: copies must be >= 1, got {copies}")
    if copies == 1:
        if shift_s is not None:
            raise ConfigError(
                f"{trace.meta.source}: copy_shift_s has no effect without copies > 1; remove it"
            )
        return trace
    n, first = len(trace), int(trace.arrival_ns[0])
    if copies > _MOST // n:
        raise ConfigError(f"{trace.meta.source}: copies must be <= {_MOST // n}, {_MOST} requests, got {copies}")
    check_requests(copies * n, f"{trace.meta.source}: copies")
    step = int(trace.id.max()) + 1
    if step * copies >= 2**63:
        raise ConfigError(f"{trace.meta.source}: copies {copies} of ids up to {step - 1} exceed 2^63")
    period = trace.span_ns + max(1, trace.span_ns // max(1, n - 1))
    shifts = _shifts(trace, copies, shift_s, period) if shift_s is not None else (
        stream(seed, "copies", replication).integers(0, period, size=copies).tolist())
    arrival = np.concatenate([first + (trace.arrival_ns - first + shift) % period for shift in shifts])
    order = np.argsort(arrival, kind="stable")
    return replace(
        replace(trace, extras=Extras()).take(order % n),
        id=freeze(np.concatenate([trace.id + k * step for k in range(copies)])[order]),
        arrival_ns=freeze(arrival[order]),
        meta=replace(with_own_rate(trace).meta, copies=trace.meta.copies * copies),
        extras=trace.extras.copied(order, n),
    )


def _shifts(trace: Trace, copies: int, shift_s: float, period: int) -> list[int]:
    """[ns] by which each copy is turned where the step between them is given."""
    if not 0 <= shift_s <= LONGEST_S:
        raise ConfigError(
            f"{trace.meta.source}: copy_shift_s must be >= 0 and <= {LONGEST_S:.0f}, got {shift_s}"
        )
    shifts = [k * to_ticks(shift_s) % period for k in range(copies)]
    if trace.span_ns and len(set(shifts)) < copies:
        raise ConfigError(
            f"{trace.meta.source}: copy_shift_s {shift_s} puts copies on top of each other within the "
            f"trace's period of {period / NS_PER_S:.3f} s"
        )
    return shifts


def cap_output(trace: Trace, max_tokens: int) -> Trace:
    """Ask for at most `max_tokens` from every request: outputs beyond it end there, as in a real engine."""
    if not 1 <= max_tokens <= MAX_TOKENS:
        raise ConfigError(f"{trace.meta.source}: max_tokens must be 1..{MAX_TOKENS}, got {max_tokens}")
    limit = np.full(len(trace), max_tokens, dtype=np.int64)
    return replace(trace, output=freeze(np.minimum(trace.output, limit)), max_tokens=freeze(limit))
