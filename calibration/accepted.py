"""Keys of run.yaml and columns of requests.csv: what is simulated, what only describes, and what is refused by name.

A setting that changes what an engine does but is not simulated would make a prediction of another engine, so
it is refused (NotModelledError), and so is a key that nobody here knows: nothing is dropped.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.config import shown
from simulator.errors import CalibrationError

ENGINE_ONLY: Final[Mapping[str, tuple[object, ...]]] = {
    "quantization": (None, "fp8"),
    "scheduling_policy": (None, "fcfs", "priority"),
    "enable_chunked_prefill": (None, True),
}
"""engine.KEY -> the values that are simulated; any other is refused."""
WIDTHS: Final[Mapping[str, str | None]] = {"open": None, "grouped": "group_size", "closed": "concurrency",
                                            "sessions": "sessions"}
"""arrivals.kind -> the key that says how many requests; of sessions, how many, and each turn is sent when it was."""
DESCRIBING: Final = ("measured_on", "measured", "note", "notes")
"""Keys of run.yaml that describe the run and change nothing."""
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "hardware": ("gpu", "count", "memory_mib", "interconnect", "note"),
    "arrivals": ("kind", "note"),
}
"""Keys of a section besides those of an arrival kind."""
SESSION_COLUMNS: Final = ("session", "turn", "think_s", "new_tokens")
"""Columns of requests.csv of arrivals.kind sessions."""
INPUT_COLUMNS: Final = (*SESSION_COLUMNS, "group", "priority")
"""Columns that say how a request behaves and are not simulated, or not with this kind of arrivals."""
RESULT_COLUMNS: Final = ("max_itl_s", "chunks", "cached_tokens", "peer_ttft_s")
"""Columns beside the required ones: results, and prefix hits as they were."""


class NotModelledError(CalibrationError):
    """A run uses what the simulator does not model; the message names the key."""


def check_keys(content: Mapping[str, Any], engine: Iterable[str], path: Path) -> None:
    """Refuse sections, keys and values of run.yaml that are not simulated. `engine`: keys of engine that are.

    Raises NotModelledError naming the key.
    """
    _known(content, ("engine", "model", *SECTIONS, *DESCRIBING), "", path)
    settings = content["engine"]
    _known(settings, (*engine, *ENGINE_ONLY), "engine.", path)
    for key, accepted in ENGINE_ONLY.items():
        value = settings.get(key)
        if value not in accepted or (isinstance(value, int) and not isinstance(value, bool)):
            raise NotModelledError(
                f"{path}: engine.{key} {shown(value)} is not modelled; accepted: {_values(accepted)}"
            )
    kind = content["arrivals"].get("kind")
    width = WIDTHS.get(kind) if isinstance(kind, str) else None
    for name, accepted_keys in SECTIONS.items():
        extra = (width,) if name == "arrivals" and width else ()
        _known(content[name], (*accepted_keys, *extra), f"{name}.", path)
    count, wanted = content["hardware"].get("count"), settings.get("tensor_parallel_size", 1)
    stages = settings.get("pipeline_parallel_size", 1)
    if count is not None and isinstance(stages, int) and count != wanted * stages:
        times = f" x engine.pipeline_parallel_size ({shown(stages)})" if stages != 1 else ""
        raise NotModelledError(
            f"{path}: hardware.count must be engine.tensor_parallel_size ({shown(wanted)}){times}, got {shown(count)}; "
            "GPUs beside one tensor-parallel group or pipeline are not modelled"
        )


def check_columns(columns: Iterable[str], required: Iterable[str], kind: str, ranked: bool, path: Path) -> None:
    """Refuse columns of requests.csv that are not simulated under this kind of arrivals, and unknown ones.

    `ranked`: the engine schedules by priority.
    """
    known = (*required, *RESULT_COLUMNS, *(SESSION_COLUMNS if kind == "sessions" else ()),
             *(("priority",) if ranked else ()))
    for column in columns:
        if column in INPUT_COLUMNS and column not in known:
            raise NotModelledError(f"{path}: column {column!r} is not modelled; accepted: {', '.join(known)}")
        if column not in known:
            raise NotModelledError(f"{path}: unknown column {shown(column)}; accepted: {', '.join(known)}")


def _known(section: Mapping[str, Any], accepted: Iterable[str], prefix: str, path: Path) -> None:
    known = tuple(accepted)
    for key in section:
        if key not in known:
            raise NotModelledError(f"{path}: {prefix}{key} is not modelled; accepted: {', '.join(sorted(known))}")


def _values(accepted: tuple[object, ...]) -> str:
    names = {None: "null", True: "true", False: "false"}
    return ", ".join(names[v] if v is None or isinstance(v, bool) else str(v) for v in accepted)
