"""A fit of two factors -> host.yaml and gpu.yaml for scenarios to name, calibration.json with all behind them."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from calibration.scales import Factor, Scales
from simulator.errors import ConfigError
from simulator.profiles.gpu import Gpu
from simulator.profiles.host import REFERENCE
from simulator.reading import ReadError, read_json
from simulator.report.folder import check_target, new_folder
from simulator.version import __version__

_NOT_TOLD = "not told by these runs, any value of the interval fits as well"


def check_base(gpu: Gpu) -> None:
    """Raise ConfigError for a GPU profile that is scaled itself: factors on factors would hide what was measured."""
    if "time_scale" in gpu.sources:
        raise ConfigError(f"{gpu.path}: a profile with a time_scale is the outcome of a calibration; accepted: the GPU "
                          "it is scaled from")


def write_overlay(out: Path, found: Scales, gpu: Gpu, inputs: Sequence[Path], about: dict[str, Any]) -> None:
    """Write the folder whole or not at all. `inputs`: the files fitted; `about`: the server as it was described."""
    target = check_target(out)
    source = f"servecast {__version__} calibrate engine, {', '.join(path.name for path in inputs) or 'a probe'}"
    told = {"inputs": [_digest(path) for path in _files(inputs)], "server": about,
            "servecast": __version__, "base": {"gpu": gpu.path.stem, "host": REFERENCE}, **fit_data(found)}
    with new_folder(out) as folder:
        _write(folder / "host.yaml", "CPU times", "host: {name: THIS FILE}",
               {"name": "calibrated", "mark": _mark(found.cpu), "scaled_from": REFERENCE,
                "cpu_scale": _entry(found.cpu, source) | {"mark": _mark(found.cpu)}})
        _write(folder / "gpu.yaml", "GPU times", "hardware: {gpu: THIS FILE}",
               {"name": f"{gpu.name}-calibrated", "mark": "fitted" if found.gpu.known else gpu.mark,
                "scaled_from": _base(gpu, target), "time_scale": _entry(found.gpu, source)})
        (folder / "calibration.json").write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def fit_sentence(profiles: Sequence[str | None], inputs: Sequence[Path]) -> str:
    """That host or GPU were fitted on some of the files, as the calibration.json beside them says; empty where not."""
    fitted = set[str]()
    for folder in {Path(name).parent for name in profiles if name and name.endswith(".yaml")}:
        with suppress(ReadError, KeyError, TypeError):
            fitted |= {each["sha256"] for each in read_json(folder / "calibration.json")["inputs"]}
    files = _files(inputs)
    own = [path for path in files if _digest(path)["sha256"] in fitted]
    if not own:
        return ""
    which = "these very runs" if len(own) == len(files) else f"{len(own)} of the {len(files)} files these runs are from"
    return f"Host and GPU were fitted on {which}: errors there are what the fit has left, not those of a prediction."


def fit_data(found: Scales) -> dict[str, Any]:
    """The fit as plain data."""
    return {"cpu_scale": asdict(found.cpu), "gpu_scale": asdict(found.gpu), "correlation": found.tied,
            "misfit": found.misfit, "means": found.rows, "says": found.sentences}


def _write(path: Path, what: str, use: str, content: dict[str, Any]) -> None:
    head = f"# {what} of a server as its runs tell them, in times of the profile named below. In a scenario: {use}\n"
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)
    path.write_text(head + text, encoding="utf-8")


def _entry(factor: Factor, source: str) -> dict[str, Any]:
    span = [float(f"{factor.low:.4g}"), float(f"{factor.high:.4g}")]
    said = source if factor.known else f"{source}: {_NOT_TOLD}"
    return {"value": float(f"{factor.value:.5g}"), "unit": "1", "interval_90": span, "source": said}


def _mark(factor: Factor) -> str:
    return "fitted" if factor.known else "assumed"


def _base(gpu: Gpu, target: Path) -> str:
    from hwprofiles import GPU_DIR

    return gpu.path.stem if gpu.path.parent == GPU_DIR else os.path.relpath(gpu.path.resolve(), target)


def _files(inputs: Sequence[Path]) -> list[Path]:
    """The files behind the inputs: of a folder its descriptions of runs and their requests."""
    below = [sorted(found for found in path.rglob("*") if found.name in ("run.yaml", "requests.csv"))
             for path in inputs if path.is_dir()]
    return [path for path in inputs if path.is_file()] + [path for group in below for path in group]


def _digest(path: Path) -> dict[str, str]:
    return {"name": f"{path.parent.name}/{path.name}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
