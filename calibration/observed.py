"""What a run says about its server, as a few means: TTFT by length of prompt, TPOT by sequences at a time.

Means of logarithms, so that one outlier weighs little and an error is a ratio. Their noise has two parts: that of the
run (block bootstrap over its requests, Künsch 1989) and that of the simulator (hwprofiles/uncertainty.yaml), of which
half is taken to be common to all means of a metric (an assumption).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.measured import MeasuredRun
from calibration.predict import ordered, predict, setup_of
from simulator.profiles.uncertainty import Z90, load_uncertainty

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MOST_REQUESTS: Final = 1500
"""Requests simulated of a run; of a longer one those of its beginning that end before the last is sent are compared."""
_MOST_GROUPS: Final = 4
_LEAST: Final = 8
"""Requests of a group, unless the run has fewer."""
_FEW: Final = 4
"""Output tokens up to which a TPOT is that of single steps."""
_BLOCKS: Final = 20
_RESAMPLES: Final = 400
_COMMON: Final = 0.5
_LEAST_S: Final = 1e-6


class Mean(NamedTuple):
    """One mean of logarithms: `metric` is ttft or tpot, `label` says of which requests, `size` how many."""

    metric: str
    label: str
    size: int


class Observation(Protocol):
    """Means measured on a server, and what the simulator makes of them under other profiles."""

    name: str
    means: list[Mean]
    measured: Array

    def predicted(self, cpu_scale: float, gpu_scale: float) -> Array:
        """Logarithms of the same means with all CPU and all GPU times multiplied."""

    def spread(self, cpu_scale: float, gpu_scale: float) -> Array:
        """Covariance of the measured means."""


@dataclass(frozen=True)
class _Group:
    mean: Mean
    rows: Rows  # of the table


class RequestMeans:
    """Means over the requests of a run."""

    def __init__(self, run: MeasuredRun, parts: Sequence[str] | None = None) -> None:
        """`parts`: what each row of the requests belongs to; default: grouped by length and sequences at a time."""
        self.name = run.path.name
        self.run, self.setup = (_beginning(run) if parts is None else run), setup_of(run)
        self._groups = _groups(self.run, _compared(run, self.run)) if parts is None else _parts(run, parts)
        self._more = np.maximum(self.run.requests.output_tokens.to_numpy() - 1, 1)
        self.means = [group.mean for group in self._groups]
        self.measured = self._means(_logs(self.run.requests))

    def predicted(self, cpu_scale: float, gpu_scale: float) -> Array:
        return self._means(self._logs(cpu_scale, gpu_scale))

    def spread(self, cpu_scale: float, gpu_scale: float) -> Array:
        """Block bootstrap over requests in order of arrival of measured over predicted."""
        predicted = self._logs(cpu_scale, gpu_scale)
        off = {name: logs - predicted[name] for name, logs in _logs(self.run.requests).items()}
        block = np.arange(len(self.run.requests)) * _BLOCKS // len(self.run.requests)
        sums = np.zeros((len(self._groups), _BLOCKS))
        counts = np.zeros_like(sums)
        for k, group in enumerate(self._groups):
            np.add.at(sums[k], block[group.rows], off[group.mean.metric][group.rows])
            np.add.at(counts[k], block[group.rows], 1.0)
        picks = np.random.default_rng(0).integers(0, _BLOCKS, (_RESAMPLES, _BLOCKS))
        taken = counts[:, picks].sum(axis=2)
        means = np.where(taken > 0, sums[:, picks].sum(axis=2) / np.maximum(taken, 1.0),
                         (sums.sum(axis=1) / counts.sum(axis=1))[:, None])
        return np.atleast_2d(np.cov(means))

    def _logs(self, cpu_scale: float, gpu_scale: float) -> dict[str, Array]:
        found = predict(self.run, self.setup.slower(cpu_scale, gpu_scale))
        place = np.argsort(found.ids)[np.searchsorted(np.sort(found.ids), self.run.requests.id.to_numpy())]
        ttft, rest = (found.first_s - found.arrival_s)[place], (found.last_s - found.first_s)[place]
        return {"ttft": _log(ttft), "tpot": _log(rest / self._more)}

    def _means(self, logs: dict[str, Array]) -> Array:
        return np.array([logs[group.mean.metric][group.rows].mean() for group in self._groups])


def model_spread(means: list[Mean]) -> Array:
    """Covariance of the simulator's own errors of these means."""
    known = load_uncertainty().half_width
    metrics = np.array([mean.metric for mean in means])
    sd = np.array([np.log1p(known[f"{metric}_mean_s"]) / Z90 for metric in metrics])
    same = metrics[:, None] == metrics[None, :]
    shared = np.where(same, _COMMON, 0.0) + (1.0 - _COMMON) * np.eye(len(means))
    result: Array = shared * sd[:, None] * sd[None, :]
    return result


def _beginning(run: MeasuredRun) -> MeasuredRun:
    if len(run.requests) <= MOST_REQUESTS:
        return run
    kept = ordered(run).head(MOST_REQUESTS)
    return replace(run, requests=kept.sort_values("arrival_s", kind="stable", ignore_index=True))


def _compared(whole: MeasuredRun, part: MeasuredRun) -> Rows:
    """Rows of `part` that what was left out of `whole` cannot have touched."""
    table = part.requests
    if len(whole.requests) == len(table):
        return np.arange(len(table))
    ended = table.arrival_s + table.e2e_s
    return np.flatnonzero((ended <= table.arrival_s.max()).to_numpy())


def _logs(table: pd.DataFrame) -> dict[str, Array]:
    """Logarithms of TTFT and TPOT of every request."""
    return {name: _log(table[f"{name}_s"].to_numpy(dtype=np.float64)) for name in ("ttft", "tpot")}


def _log(seconds: Array) -> Array:
    result: Array = np.log(np.maximum(seconds, _LEAST_S))
    return result


def _groups(run: MeasuredRun, rows: Rows) -> list[_Group]:
    """TTFT by prompt tokens; TPOT, of requests with more than one token, by sequences running beside them."""
    table = run.requests
    prompt = table.prompt_tokens.to_numpy(dtype=np.float64)
    many = rows[table.output_tokens.to_numpy()[rows] > 1]
    beside = _concurrency(table)
    ttft = [_Group(Mean("ttft", f"prompts of {span_text(prompt[part])} tokens", len(part)), part)
            for part in quantile_groups(rows, prompt)]
    tpot = [_Group(Mean("tpot", f"{span_text(beside[part])} sequences at a time", len(part)), part)
            for part in quantile_groups(many, beside)]
    return ttft + tpot


def _parts(run: MeasuredRun, parts: Sequence[str]) -> list[_Group]:
    """TTFT of every part, and TPOT of those with more than a few tokens."""
    names, output = np.array(parts), run.requests.output_tokens.to_numpy()
    groups = []
    for name in dict.fromkeys(parts):
        rows = np.flatnonzero(names == name)
        groups.append(_Group(Mean("ttft", name, len(rows)), rows))
        if output[rows].min() > _FEW:
            groups.append(_Group(Mean("tpot", name, len(rows)), rows))
    return groups


def span_text(values: Array) -> str:
    low, high = round(float(values.min())), round(float(values.max()))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def quantile_groups(rows: Rows, values: Array) -> list[Rows]:
    """Rows in up to _MOST_GROUPS parts by value, each of _LEAST or more where there are so many; equal values stay
    together."""
    if not len(rows):
        return []
    here = values[rows]
    parts = min(_MOST_GROUPS, max(1, len(rows) // _LEAST))
    edges = np.unique(np.quantile(here, np.linspace(0, 1, parts + 1)[1:-1], method="lower"))
    place = np.searchsorted(edges, here, side="left")
    return [rows[place == k] for k in np.unique(place)]


def _concurrency(table: pd.DataFrame) -> Array:
    """Mean requests between first and last token while each request was, itself counted."""
    first = (table.arrival_s + table.ttft_s).to_numpy(dtype=np.float64)
    last = np.maximum((table.arrival_s + table.e2e_s).to_numpy(dtype=np.float64), first + 1e-9)
    at = np.concatenate([first, last])
    order = np.argsort(at, kind="stable")
    moments = at[order]
    running = np.concatenate([np.ones_like(first), -np.ones_like(last)])[order].cumsum()
    area = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(moments))])
    result: Array = (np.interp(last, moments, area) - np.interp(first, moments, area)) / (last - first)
    return result
