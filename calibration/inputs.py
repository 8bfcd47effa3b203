"""Files and folders on the command line -> measured runs: with settings of their own, or with those of the flags."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from calibration.measured import MeasuredRun, find_runs, load_run
from calibration.served import Served, read_served
from calibration.server import Server
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.model import load_model


def places_of(inputs: Iterable[Path]) -> list[Path]:
    """Files, and the folders with run.yaml in or below those given, each once. Raises CalibrationError for a folder
    without one."""
    places = (place for path in inputs for place in (find_runs([path]) if path.is_dir() else [path]))
    return list({place.resolve(): place for place in places}.values())


def requests_bytes(place: Path) -> int:
    """[bytes] of a file, or of a folder with run.yaml but for step logs, which grow with the time that it takes to
    predict them."""
    files = [file for file in place.iterdir() if not file.name.startswith("steps")] if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def runs_of(path: Path, given: Server, note: Callable[[str], None]) -> list[MeasuredRun]:
    """The runs in a result file, or the one of a folder with run.yaml. `note` is told what a file leaves open.

    Raises CalibrationError for a file that cannot be read, ConfigError for flags that are missing.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if path.is_dir():
        return [load_run(path)]
    runs, found = [], read_served(path)
    for number, served in enumerate(found, start=1):
        named = dataclasses.replace(served, path=path.with_name(f"{path.name}#{number}")) if len(found) > 1 else served
        for line in served.notes:
            note(f"{named.path}: {line}")
        runs.append(_described(served, given).run(named))
    return runs


def needed_flags(given: Server, path: Path) -> None:
    """Raise ConfigError where --hardware or --model is missing beside a file that names neither."""
    if not given.hardware:
        raise ConfigError(f"{path}: does not say the GPU; needed: --hardware, e.g. h100")
    if not given.model:
        raise ConfigError(f"{path}: does not name the model; needed: --model, e.g. --model llama-3.1-8b")


def _described(served: Served, given: Server) -> Server:
    """The flags, the model being the one that the file names where no flag does."""
    if given.model or not served.model:
        needed_flags(given, served.path)
        return given
    needed_flags(dataclasses.replace(given, model=served.model), served.path)
    try:
        load_model(served.model)
    except (UnknownNameError, ConfigError) as error:
        raise ConfigError(f"{served.path}: {error}; needed: --model, a name or a config.json") from error
    return dataclasses.replace(given, model=served.model)
