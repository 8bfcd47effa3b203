"""Measured runs of a real engine: `run.yaml` + `requests.csv` (+ `steps.csv`), or vLLM's benchmark JSON.

A run's folder holds run.yaml (engine settings, hardware, model config file, arrival kind) and the requests,
either as requests.csv (one row a request: arrival, lengths, TTFT, TPOT, E2E; see
calibration/measurements/README.md) or as the file `vllm bench serve --save-result --save-detailed` writes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, TypeAdapter, ValidationError

from calibration.accepted import WIDTHS, check_columns, check_keys
from calibration.speculative import speculation_of
from simulator.config import read_yaml, shown
from simulator.errors import CalibrationError, ConfigError
from simulator.profiles.speculation import Speculation
from simulator.reading import MAX_RESULT, ReadError, read_json

REQUEST_COLUMNS: Final = ("id", "arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s")
STEP_COLUMNS: Final = (
    "t_schedule_s",
    "n_decode",
    "decode_context_tokens",
    "n_prefill",
    "prefill_tokens",
    "prefill_attention_pairs",
    "n_running",
    "n_waiting",
    "t_output_s",
)
STEP_LOGS: Final = ("steps.csv", "steps.csv.gz")
KINDS: Final = tuple(WIDTHS)
Count = Annotated[int, Field(ge=1, le=2**30)]
Blocks = Annotated[int, Field(ge=2, le=2**30)]


@dataclass(frozen=True)
class EngineSettings:
    """What run.yaml says of the engine; None where it says nothing."""

    name: str
    version: str
    max_num_seqs: Count
    max_num_batched_tokens: Count
    tensor_parallel_size: Count = 1
    async_scheduling: bool | None = None
    block_size: Count = 16
    num_gpu_blocks: Blocks | None = None
    num_gpu_blocks_override: Blocks | None = None
    max_model_len: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "bfloat16"
    quantization: str | None = None
    enable_prefix_caching: bool = False
    scheduling_policy: str | None = None
    enable_expert_parallel: bool | None = None
    cuda_graphs: bool = True
    speculative: dict[str, Any] | None = None
    sampling: dict[str, float] | None = None
    deep_gemm: bool = True  # VLLM_USE_DEEP_GEMM: products of fp8 weights in blocks on Hopper and later
    lora: dict[str, int] | None = None
    pipeline_parallel_size: Count = 1
    compile_cache: bool = False  # a later start: torch.compile's cache was there

    @property
    def weight_dtype(self) -> str:
        """Format of the layers' weights: that of the quantisation, else of the model."""
        return self.quantization or self.dtype

    @property
    def profile(self) -> str:
        """Name of the engine profile: `vllm-0.24` for vLLM 0.24.0; the name alone where no version is given."""
        return self.name if not self.version else f"{self.name}-{'.'.join(self.version.split('.')[:2])}"


@dataclass(frozen=True)
class MeasuredRun:
    """One run. `requests` is sorted by arrival (stable), ids kept; `steps` is None where there is no log."""

    path: Path
    engine: EngineSettings
    gpu: str
    model: Path
    kind: str  # one of KINDS
    width: int  # group size or concurrency, 0 for open
    requests: pd.DataFrame = field(hash=False)
    steps: pd.DataFrame | None = field(hash=False)
    measured: Mapping[str, float] = field(hash=False)  # the aggregates that run.yaml states
    speculation: Speculation | None = None
    pcie: bool = False  # the GPUs reached each other over PCIe: hardware.interconnect

    @property
    def name(self) -> str:
        """`series/run`."""
        return f"{self.path.parent.name}/{self.path.name}"


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Folders with a run.yaml in or below the given ones, sorted. Raises CalibrationError where there is none."""
    found: set[Path] = set()
    for folder in folders:
        below = [path.parent for path in Path(folder).rglob("run.yaml")]
        if not below:
            raise CalibrationError(f"{folder}: no run.yaml in or below it")
        found.update(below)
    return sorted(found)


def load_run(folder: Path) -> MeasuredRun:
    """Read one run. Raises CalibrationError naming file and field."""
    path = folder / "run.yaml"
    try:
        content = read_yaml(path, "run description")
    except ConfigError as error:
        raise CalibrationError(str(error)) from error
    section = _section(content, "engine", path)
    hardware, arrivals = _section(content, "hardware", path), _section(content, "arrivals", path)
    check_keys(content, EngineSettings.__dataclass_fields__, path)
    engine = _engine(section, path)
    kind, width = _arrivals(arrivals, path)
    ranked = engine.scheduling_policy == "priority"
    requests = _requests(folder, kind, ranked)
    if ranked and "priority" not in requests:
        raise CalibrationError(f"{folder}: engine.scheduling_policy priority needs a column priority of the requests")
    if kind == "sessions" and not {"session", "turn"} <= set(requests):
        raise CalibrationError(f"{folder / 'requests.csv'}: arrivals.kind sessions needs columns session and turn")
    log = next((folder / name for name in STEP_LOGS if (folder / name).is_file()), None)
    steps = None if log is None else read_table(log, STEP_COLUMNS)
    return MeasuredRun(
        path=folder.resolve(),
        engine=engine,
        gpu=str(hardware.get("gpu", "")),
        pcie=str(hardware.get("interconnect") or "").startswith("PCIe"),
        model=_model(folder, str(content.get("model", ""))),
        kind=kind,
        width=width,
        requests=requests.sort_values("arrival_s", kind="stable", ignore_index=True),
        steps=steps,
        measured=content.get("measured") or {},
        speculation=speculation_of(engine.speculative, (content.get("measured") or {}).get("tokens_per_step"),
                                   float(requests.output_tokens.mean()), path, lambda name: _model(folder, name)),
    )


def _section(content: object, key: str, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get(key), dict):
        raise CalibrationError(f"{path}: section '{key}' is missing")
    section: dict[str, Any] = content[key]
    return section


def _engine(section: dict[str, Any], path: Path) -> EngineSettings:
    known = EngineSettings.__dataclass_fields__
    missing = [
        key for key in ("name", "version", "max_num_seqs", "max_num_batched_tokens") if key not in section
    ]
    if missing:
        raise CalibrationError(f"{path}: engine.{missing[0]} is missing")
    hints = get_type_hints(EngineSettings, include_extras=True)
    settings = {key: value for key, value in section.items() if key in known}
    for key, value in settings.items():
        try:
            TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].replace("Input should be", "must be")
            raise CalibrationError(f"{path}: engine.{key} {problem}, got {shown(value)}") from None
    return EngineSettings(**settings)


def _arrivals(section: dict[str, Any], path: Path) -> tuple[str, int]:
    kind = str(section.get("kind"))
    if kind not in KINDS:
        raise CalibrationError(f"{path}: arrivals.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    key = WIDTHS[kind]
    if key is None:
        return kind, 0
    width = section.get(key)
    if not isinstance(width, int) or width < 1:
        raise CalibrationError(f"{path}: arrivals.{key} must be a whole number >= 1, got {width!r}")
    return kind, width


def _model(folder: Path, name: str) -> Path:
    """Config file of the model: beside the run, or in `models/` two levels up."""
    candidates = [folder / name, folder.parent.parent / "models" / name]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise CalibrationError(
            f"{folder / 'run.yaml'}: model file {name!r} is not at "
            f"{' or '.join(str(path) for path in candidates)}"
        )
    return found


def _requests(folder: Path, kind: str, ranked: bool) -> pd.DataFrame:
    if (folder / "requests.csv").is_file():
        table = read_table(folder / "requests.csv", REQUEST_COLUMNS)
        check_columns(table.columns, REQUEST_COLUMNS, kind, ranked, folder / "requests.csv")
        return table
    detailed = sorted(folder.glob("*.json"))
    if len(detailed) != 1:
        raise CalibrationError(
            f"{folder}: needs requests.csv or one benchmark JSON, found {len(detailed)} JSON files"
        )
    return load_bench(detailed[0])


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The rows of a CSV that must have `columns`, numbers all. Raises CalibrationError."""
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: not a readable CSV: {error}") from error
    if not isinstance(table.index, pd.RangeIndex):
        raise CalibrationError(f"{path}: rows have more fields than the {len(table.columns)} of the header")
    missing = [column for column in columns if column not in table]
    if missing or table.empty:
        raise CalibrationError(
            f"{path}: {'no rows' if table.empty else 'column ' + missing[0] + ' is missing'}"
        )
    numbers = table[list(columns)].apply(pd.to_numeric, errors="coerce")
    bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
    if bad.size:
        raise CalibrationError(f"{path}: data row {bad[0] + 1}: not a number in {', '.join(columns)}")
    return table


def load_bench(path: Path) -> pd.DataFrame:
    """Requests of a `vllm bench serve --save-detailed` JSON with the columns of requests.csv.

    TPOT is recomputed as (E2E - TTFT) / (n - 1): ITL entries count stream events, not tokens. Failed
    requests (no output) are dropped.
    """
    try:
        content = read_json(path, MAX_RESULT)
        prompt, output = np.asarray(content["input_lens"]), np.asarray(content["output_lens"])
        ttft = np.asarray(content["ttfts"], dtype=np.float64)
        stream = np.asarray([float(sum(gaps)) for gaps in content["itls"]])
        start = np.asarray(content["start_times"], dtype=np.float64)
    except (ReadError, ValueError, KeyError, TypeError) as error:
        raise CalibrationError(
            f"{path}: not a detailed vLLM benchmark file (needs input_lens, output_lens, ttfts, "
            f"itls, start_times): {error!r}"
        ) from error
    if len({len(prompt), len(output), len(ttft), len(stream), len(start)}) != 1:
        raise CalibrationError(f"{path}: input_lens, output_lens, ttfts, itls, start_times differ in length")
    if not len(prompt) or not all(np.isfinite(each).all() for each in (ttft, stream, start)):
        raise CalibrationError(f"{path}: needs at least one request, and finite times")
    e2e = ttft + stream
    table = pd.DataFrame(
        {
            "id": np.arange(len(prompt)),
            "arrival_s": start - start.min(),
            "prompt_tokens": prompt,
            "output_tokens": output,
            "ttft_s": ttft,
            "tpot_s": (e2e - ttft) / np.maximum(output - 1, 1),
            "e2e_s": e2e,
        }
    )
    return table[table.output_tokens > 0].reset_index(drop=True)


def metrics_of(
    arrival: npt.NDArray[np.float64],
    first: npt.NDArray[np.float64],
    last: npt.NDArray[np.float64],
    output: npt.NDArray[np.int64],
) -> dict[str, float]:
    """The metrics compared, from times in seconds, one row a request.

    Duration is last completion - first arrival; percentiles interpolate linearly; TPOT = (last - first) /
    (n - 1) over requests with more than one output token.
    """
    ttft, e2e = first - arrival, last - arrival
    many = output > 1
    tpot = (last - first)[many] / (output[many] - 1)
    values = {
        "output_tokens_per_s": float(output.sum() / (last.max() - arrival.min())),
        "ttft_mean_s": float(ttft.mean()),
        "ttft_p50_s": float(np.percentile(ttft, 50)),
        "ttft_p99_s": float(np.percentile(ttft, 99)),
        "e2e_mean_s": float(e2e.mean()),
        "e2e_p99_s": float(np.percentile(e2e, 99)),
    }
    if many.any():
        values |= {"tpot_mean_s": float(tpot.mean()), "tpot_p99_s": float(np.percentile(tpot, 99))}
    return values


def measured_metrics(run: MeasuredRun) -> dict[str, float]:
    """Metrics of the run as measured, recomputed from its requests."""
    table = run.requests
    arrival = table.arrival_s.to_numpy(dtype=np.float64)
    return metrics_of(
        arrival,
        arrival + table.ttft_s.to_numpy(),
        arrival + table.e2e_s.to_numpy(),
        table.output_tokens.to_numpy(dtype=np.int64),
    )
