"""90 % intervals of predictions, from the fit's residuals and from repeated runs.

Half-width of a metric on a known host = 1.645 x sqrt(fit^2 + repeat^2), where `fit` is the robust standard deviation
(1.4826 x median absolute value) of the log errors over the runs used for fitting, first runs of a prompt
size left out, and `repeat` the standard deviation of one run against its repetition on another card. Both
are about the simulator's own means, so nothing of the test runs' errors enters. A host that is not known adds
1.645 x the standard deviation of the engine itself under the same requests on two hosts; to requests that are served
alone, on any host, that of the same lone requests on several engines where that is more.

`python -m calibration.intervals` writes hwprofiles/uncertainty.yaml from the shipped measurements.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from calibration.accepted import NotModelledError
from calibration.classes import class_of, served_alone
from calibration.fit import MEASUREMENTS, first_of_its_size, of_a_feature, used_for_fit
from calibration.harness import write_atomically
from calibration.measured import MeasuredRun, find_runs, load_run, measured_metrics
from calibration.predict import predict
from simulator.profiles.uncertainty import METRICS, PATH, Z90

MAD_TO_SD: Final = 1.4826
BLOCKS_HALF_WIDTH: Final = 0.01
"""The memory parts are solved from two block counts, so they leave no residual: 1 % is assumed."""
FACTORS: Final = {"measured": 1.0, "extrapolated": 1.5, "fitted": 1.5, "scaled": 2.0, "datasheet": 3.0, "textbook": 0.0}
"""Widening by profile mark; assumed, not measured."""


def modelled_runs(measurements: Path) -> list[MeasuredRun]:
    """The committed runs but for those of what is not modelled."""
    runs = []
    for folder in find_runs([measurements]):
        with contextlib.suppress(NotModelledError):
            runs.append(load_run(folder))
    return runs


def log_errors(runs: Sequence[MeasuredRun]) -> dict[str, list[float]]:
    """ln(predicted / measured) by metric over the runs used for fitting."""
    errors: dict[str, list[float]] = {}
    for run in runs:
        if not used_for_fit(run.name) or first_of_its_size(run.name) or of_a_feature(run.name):
            continue
        predicted, measured = predict(run).metrics, measured_metrics(run)
        for name, value in measured.items():
            errors.setdefault(name, []).append(float(np.log(predicted[name] / value)))
    return errors


def repeat_spread(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Standard deviation of ln(metric) between runs of a series and of `SERIES-repeat`: another card of one kind."""
    return _spread(runs, "", "-repeat")


def host_spread(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Standard deviation of ln(metric) between the same requests on two hosts: `SERIES-traffic` and `SERIES-b`."""
    return _spread(runs, "-traffic", "-b")


def _spread(runs: Sequence[MeasuredRun], one: str, other: str) -> dict[str, float]:
    by_name = {run.name: measured_metrics(run) for run in runs}
    pairs = []
    for name, metrics in by_name.items():
        series, _, load = name.partition("/")
        twin = f"{series.removesuffix(other)}{one}/{load}"
        if series.endswith(other) and twin in by_name:
            pairs.append((by_name[twin], metrics))
    return {
        name: float(np.sqrt(np.mean([np.log(b[name] / a[name]) ** 2 / 2 for a, b in pairs])))
        for name in METRICS
        if pairs and all(name in a and name in b for a, b in pairs)
    }


def alone_spread(runs: Sequence[MeasuredRun]) -> dict[str, float]:
    """Standard deviation of ln(metric) between engines of one kind that served the same lone requests (a class, a
    model, sizes): their launches differ for seconds at a time, and no other request of the step averages that."""
    groups: dict[tuple[str, str, str], list[Mapping[str, float]]] = {}
    for run in runs:
        if served_alone(run) and not first_of_its_size(run.name):
            sizes = str(run.requests[["prompt_tokens", "output_tokens"]].drop_duplicates().to_numpy().tolist())
            groups.setdefault((class_of(run), str(run.model), sizes), []).append(measured_metrics(run))
    several = [group for group in groups.values() if len(group) > 1]
    return {
        name: float(np.sqrt(sum(np.var([np.log(each[name]) for each in group]) * len(group) for group in several)
                            / sum(len(group) - 1 for group in several)))
        for name in METRICS
        if several and all(name in each for group in several for each in group)
    }


def half_widths(errors: Mapping[str, Sequence[float]], repeat: Mapping[str, float]) -> dict[str, float]:
    """Relative 90 % half-widths by metric."""
    widths = {}
    for name, values in errors.items():
        spread = MAD_TO_SD * float(np.median(np.abs(values)))
        widths[name] = Z90 * float(np.hypot(spread, repeat.get(name, 0.0)))
    return widths | {"num_gpu_blocks": BLOCKS_HALF_WIDTH}


def write_uncertainty(
    path: Path, widths: Mapping[str, float], hosts: Mapping[str, float], alone: Mapping[str, float]
) -> None:
    """Write hwprofiles/uncertainty.yaml; `hosts`: standard deviations between hosts, `alone`: of lone requests."""
    blocks = "num_gpu_blocks"
    lines = ["# 90 % half-widths of predictions, by metric; written by calibration.intervals.",
             "half_width:  # on a host whose times are known"]
    lines += [_line(name, widths[name], *(("assumed", "the memory fit leaves no residual") if name == blocks else
                                          ("fitted", "residuals of the fit runs and spread of repeated runs")))
              for name in METRICS]
    lines.append("host:  # what a host adds whose times are not known")
    pairs = "the same requests on two hosts (calibration/measurements: *-traffic and *-b)"
    lines += [_line(name, Z90 * hosts.get(name, 0.0), "measured",
                    "memory does not hang on the host" if name == blocks else pairs) for name in METRICS]
    lines.append("alone:  # what the states of a host add in its place to requests that meet no others")
    same = "the same lone requests on engines of one kind (calibration/measurements: pre_*, prefill_*, batch_b1)"
    lines += [_line(name, Z90 * alone.get(name, 0.0), "measured",
                    "memory does not hang on the host" if name == blocks else same) for name in METRICS]
    lines.append("factor:  # by mark of the GPU profile, or of the run (simulator.metrics.trust)")
    lines += [f"  {mark}: {{value: {factor}, unit: '1', mark: assumed, source: 'not measured'}}"
              for mark, factor in FACTORS.items()]
    write_atomically(path, "\n".join(lines) + "\n")


def _line(name: str, share: float, mark: str, source: str) -> str:
    about = f"mark: {mark}, source: 'calibration.intervals: {source}'"
    return f"  {name}: {{value: {100 * share:.1f}, unit: '%', {about}}}"


if __name__ == "__main__":
    measured = modelled_runs(MEASUREMENTS)
    write_uncertainty(PATH, half_widths(log_errors(measured), repeat_spread(measured)), host_spread(measured),
                      alone_spread(measured))
