"""How far predictions are off: 90 % half-widths per metric from hwprofiles/uncertainty.yaml.

They come from the residuals of the fit runs, the spread between repeated runs, that of the same load on two hosts and
of the same lone requests on several engines (calibration.intervals); for profiles that were scaled or taken from
datasheets they are widened by assumed factors in the same file.
"""

import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hwprofiles import ROOT
from simulator.config import read_yaml
from simulator.errors import ConfigError, UnknownNameError

PATH: Final = ROOT / "uncertainty.yaml"
Z90: Final = 1.645
"""Half of a normal distribution's 90 % interval, in standard deviations."""
METRICS: Final = (
    "output_tokens_per_s",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "tpot_p99_s",
    "e2e_mean_s",
    "e2e_p99_s",
    "num_gpu_blocks",
)


@dataclass(frozen=True)
class Uncertainty:
    """Relative 90 % half-widths (0.05 = 5 %) by metric on a known host, what a host adds that is not known, what takes
    its place for requests that meet no others (launches differ between engines of one kind, for seconds at a time), and
    factors by profile mark."""

    half_width: dict[str, float] = field(hash=False)
    host: dict[str, float] = field(hash=False)
    alone: dict[str, float] = field(hash=False)
    factor: dict[str, float] = field(hash=False)

    def width(self, metric: str, mark: str = "measured", known_host: bool = False, alone: float = 0.0) -> float:
        """Relative half-width of a metric: of the model, and of what hosts differ by unless the host is known (its
        profile was measured there). `alone`, the share_alone of requests that meet no others: what engines of one kind
        differ by where that is more, on a known host too, for nothing averages the state of its launch.
        Raises UnknownNameError for a metric or mark without a width."""
        if metric not in self.half_width:
            raise UnknownNameError("metric", metric, self.half_width)
        if mark not in self.factor:
            raise UnknownNameError("profile mark", mark, self.factor)
        state = max(self.alone[metric] * alone, 0.0 if known_host else self.host[metric])
        return math.hypot(self.half_width[metric], state) * self.factor[mark]

    def interval(self, metric: str, predicted: float, mark: str = "measured", known_host: bool = False,
                 alone: float = 0.0) -> tuple[float, float]:
        """(low, high) around a prediction; log-symmetric, so low stays positive. Raises as `width`."""
        ratio = 1.0 + self.width(metric, mark, known_host, alone)
        return predicted / ratio, predicted * ratio


def share_alone(metric: str, ttft_s: float, e2e_s: float, output: float) -> float:
    """The share of a lone request's metric that hangs on the one launch before its first token, as seen on answers of
    two tokens: all of TTFT, TTFT's share of E2E and of the tokens per second, one of its gaps."""
    if metric.startswith("ttft"):
        return 1.0
    return 1.0 / max(output - 1.0, 1.0) if metric.startswith("tpot") else min(ttft_s / e2e_s, 1.0)


@functools.cache
def load_uncertainty(path: Path = PATH) -> Uncertainty:
    """The shipped widths. Raises ConfigError for a file that cannot be used."""
    try:
        content = read_yaml(path, "uncertainty file")
        widths, hosts, alone = ({name: float(entry["value"]) / 100 for name, entry in content[part].items()}
                                for part in ("half_width", "host", "alone"))
        factors = {name: float(entry["value"]) for name, entry in content["factor"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable uncertainty file: {error!r}") from error
    return Uncertainty(widths, hosts, alone, factors)
