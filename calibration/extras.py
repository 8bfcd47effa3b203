"""engine.sampling and engine.lora of a run.yaml: what of them is simulated, and what is refused by name."""

from collections.abc import Mapping
from pathlib import Path

from calibration.accepted import NotModelledError
from simulator.config import shown
from simulator.cost.extras import GREEDY
from simulator.errors import CalibrationError, ConfigError
from simulator.profiles.adapters import Lora, check_lora
from simulator.profiles.model import ModelShape

_LORA = ("max_loras", "rank", "adapters")


def sampler_of(settings: Mapping[str, float] | None, path: Path) -> str:
    """The sampler behind {top_p, top_k, temperature}: greedy without the first two. Raises NotModelledError."""
    settings = settings or {}
    unknown = [key for key in settings if key not in ("top_p", "top_k", "temperature")]
    if unknown:
        raise NotModelledError(f"{path}: engine.sampling.{unknown[0]} is not modelled; accepted: "
                               "temperature, top_k, top_p")
    return "_".join(key for key in ("top_k", "top_p") if key in settings) or GREEDY


def lora_of(settings: Mapping[str, int] | None) -> Lora | None:
    """{max_loras, rank, adapters} as the cost and memory models take it."""
    return None if settings is None else Lora(*(settings[key] for key in _LORA))


def check_extras(sampling: Mapping[str, float] | None, lora: Mapping[str, int] | None, model: ModelShape, tp: int,
                 engine: str, path: Path) -> None:
    """Raise NotModelledError for what step times do not cover, CalibrationError for a section that is not whole."""
    if sampler_of(sampling, path) != GREEDY and engine != "vllm-0.24":
        raise NotModelledError(f"{path}: engine.sampling is modelled for vllm-0.24, where it was measured, got "
                               f"{engine}")
    if lora is None:
        return
    wrong = sorted(set(lora) ^ set(_LORA))
    if wrong or not 0 <= lora["adapters"] <= lora["max_loras"] or lora["rank"] < 1:
        raise CalibrationError(f"{path}: engine.lora must be {{max_loras, rank, adapters}}, whole numbers with "
                               f"adapters <= max_loras, got {shown(lora)}")
    try:
        check_lora(Lora(*(lora[key] for key in _LORA)), model, tp, engine)
    except ConfigError as error:
        raise NotModelledError(f"{path}: engine.lora: {error}") from None
