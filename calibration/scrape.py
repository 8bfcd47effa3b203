"""A scrape of vLLM's /metrics -> two means: TTFT and inter-token latency of all requests since the server started, or
between two scrapes.

A scrape does not say when requests came. By Little's law, sequences at a time = rate x output tokens x inter-token
latency, and sequences at a time = generated tokens over engine steps (`iteration_tokens_total`), so the mean rate
follows; arrivals are taken to be Poisson, lengths to be drawn from the histograms of prompts and answers. What that
leaves open is added to the error (assumed).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from calibration.observed import Mean
from calibration.predict import predict, setup_of
from calibration.served import Served
from calibration.server import Server
from simulator.errors import CalibrationError
from simulator.reading import MAX_RESULT, ReadError, read_text

Array = npt.NDArray[np.float64]

TTFT, ITL, STEPS = "time_to_first_token_seconds", "inter_token_latency_seconds", "iteration_tokens_total"
PROMPT, OUTPUT, QUEUE = "request_prompt_tokens", "request_generation_tokens", "request_queue_time_seconds"
_OLD_ITL: Final = "time_per_output_token_seconds"
_LINE: Final = re.compile(r'^(?:vllm:)(\w+?)_(sum|count|bucket)(\{[^}]*\})? (\S+)')
_EDGE: Final = re.compile(r'le="([^"]+)"')
_REQUESTS: Final = 500
_WARM: Final = 0.2
"""Share of the simulated requests left out in front, while batches build up, and behind, while they empty."""
_SPREAD: Final = {"ttft": 0.15, "tpot": 0.04}
"""Relative standard deviation added to the two means for what a scrape leaves open; assumed."""
_WAITING: Final = 0.5


@dataclass(frozen=True)
class Histogram:
    """Sum and count, and the counts up to each edge."""

    total: float = 0.0
    count: float = 0.0
    edges: tuple[float, ...] = ()
    below: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return self.total / self.count

    def less(self, earlier: "Histogram") -> "Histogram":
        """What came after an earlier scrape of the same server."""
        before = dict(zip(earlier.edges, earlier.below, strict=True))
        below = tuple(count - before.get(edge, 0.0) for edge, count in zip(self.edges, self.below, strict=True))
        return replace(self, total=self.total - earlier.total, count=self.count - earlier.count, below=below)

    def drawn(self, draws: Array) -> Array:
        """Values at these ranks, evenly in the logarithm inside a bucket, stretched to the mean."""
        edges = np.array([1.0, *[edge for edge in self.edges if np.isfinite(edge)]])
        share = np.array([0.0, *self.below[: len(edges) - 1]]) / max(self.count, 1.0)
        values = np.exp(np.interp(draws, share, np.log(np.maximum(edges, 1.0))))
        result: Array = np.maximum(1.0, values * self.mean / values.mean())
        return result


def is_scrape(path: Path) -> bool:
    """Whether a file begins as Prometheus text does."""
    try:
        with path.open("rb") as file:
            return file.read(2).startswith(b"# ") or path.suffix == ".prom"
    except OSError:
        return False


def read_scrape(path: Path) -> dict[str, Histogram]:
    """Histograms of vLLM by name, engines added up. Raises CalibrationError where one that is needed is not there."""
    try:
        text = read_text(path, MAX_RESULT)
    except ReadError as error:
        raise CalibrationError(f"{path}: {error}") from error
    sums: dict[tuple[str, str, float], float] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if found:
            name, part, labels, value = found.groups()
            edge = _EDGE.search(labels or "")
            key = (name, part, float(edge[1].replace("+Inf", "inf")) if edge else 0.0)
            sums[key] = sums.get(key, 0.0) + float(value)
    names = {name for name, *_ in sums}
    made = {name: _histogram(name, sums) for name in names}
    if ITL not in made and _OLD_ITL in made:
        made[ITL] = made[_OLD_ITL]
    missing = [name for name in (TTFT, ITL, STEPS, PROMPT, OUTPUT) if name not in made]
    if missing:
        raise CalibrationError(f"{path}: no histogram vllm:{missing[0]}; accepted: the text of a vLLM server's "
                               "/metrics")
    return made


def _histogram(name: str, sums: Mapping[tuple[str, str, float], float]) -> Histogram:
    buckets = sorted((edge, count) for (of, part, edge), count in sums.items() if of == name and part == "bucket")
    return Histogram(sums.get((name, "sum", 0.0), 0.0), sums.get((name, "count", 0.0), 0.0),
                     tuple(edge for edge, _ in buckets), tuple(count for _, count in buckets))


def since(scrapes: Sequence[dict[str, Histogram]]) -> dict[str, Histogram]:
    """What a server did: of one scrape since it started, of two between them."""
    if len(scrapes) == 1:
        return scrapes[0]
    return {name: each.less(scrapes[0].get(name, Histogram())) for name, each in scrapes[-1].items()}


class ScrapeMeans:
    """Mean TTFT and inter-token latency of a scrape, and of simulated traffic like it."""

    def __init__(self, paths: Sequence[Path], given: Server) -> None:
        """One scrape, or one before and one after. Raises CalibrationError where they tell too little."""
        if len(paths) > 2:
            raise CalibrationError(f"{paths[2]}: a third scrape; accepted: one, or one before and one after a load")
        self.name = paths[-1].name
        told = since([read_scrape(path) for path in paths])
        self._check(told, paths[-1])
        size = told[OUTPUT].total / told[STEPS].count
        self.rate = size / (told[OUTPUT].mean * told[ITL].mean)
        self._run = given.run(Served(paths[-1], "open", 0, self._traffic(told)))
        self._setup = setup_of(self._run)
        label = f"{size:.3g} sequences a step, {self.rate:.3g} requests/s"
        self.means = [Mean("ttft", label, int(told[TTFT].count)), Mean("tpot", label, int(told[ITL].count))]
        self.measured = np.log([told[TTFT].mean, told[ITL].mean])

    @staticmethod
    def _check(told: Mapping[str, Histogram], path: Path) -> None:
        if min(told[name].count for name in (TTFT, ITL, STEPS, PROMPT, OUTPUT)) <= 0:
            raise CalibrationError(f"{path}: no request was served; accepted: a scrape after a load (of two, the later "
                                   "last)")
        queue = told.get(QUEUE, Histogram())
        if queue.total > _WAITING * told[TTFT].total:
            raise CalibrationError(f"{path}: requests wait for {100 * queue.total / told[TTFT].total:.0f} % of their "
                                   "TTFT, which tells nothing of single steps; accepted: a scrape of a server that "
                                   "keeps up")

    def _traffic(self, told: Mapping[str, Histogram]) -> pd.DataFrame:
        draw = np.random.default_rng(0)
        prompt, output = (np.rint(told[name].drawn(draw.random(_REQUESTS))).astype(np.int64)
                          for name in (PROMPT, OUTPUT))
        arrival, blank = draw.exponential(1 / self.rate, _REQUESTS).cumsum(), np.ones(_REQUESTS)
        return pd.DataFrame({"id": np.arange(_REQUESTS), "arrival_s": arrival, "prompt_tokens": prompt,
                             "output_tokens": output, "ttft_s": blank, "tpot_s": blank, "e2e_s": blank})

    def predicted(self, cpu_scale: float, gpu_scale: float) -> Array:
        found = predict(self._run, self._setup.slower(cpu_scale, gpu_scale))
        kept = slice(int(_WARM * _REQUESTS), int((1 - _WARM) * _REQUESTS))
        gaps = self._run.requests.set_index("id").output_tokens.reindex(found.ids).to_numpy() - 1
        ttft = (found.first_s - found.arrival_s)[kept].mean()
        itl = (found.last_s - found.first_s)[kept].sum() / max(float(gaps[kept].sum()), 1.0)
        return np.log([ttft, max(itl, 1e-6)])

    def spread(self, cpu_scale: float, gpu_scale: float) -> Array:
        return np.diag([_SPREAD[mean.metric] ** 2 for mean in self.means])
