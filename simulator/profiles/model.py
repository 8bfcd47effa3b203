"""Models by name or config.json: hwprofiles/models/*.json and a user's own files -> ModelShape."""

import functools
import json
from pathlib import Path

from hwprofiles import MODEL_DIR
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.config_json import parse_model
from simulator.profiles.quantisation import ACTIVATION_BYTES, KV_BYTES, WEIGHT_BYTES, dtype_name
from simulator.profiles.shape import Experts, Gemm, Latent, ModelShape


def list_models() -> tuple[str, ...]:
    """Names of the shipped models."""
    return tuple(sorted(path.stem for path in MODEL_DIR.glob("*.json")))


def load_model(name_or_path: str | Path) -> ModelShape:
    """A shipped name (`llama-3.1-8b`, also `meta-llama/Llama-3.1-8B-Instruct`), a config.json or its folder.

    Raises UnknownNameError for a name that is neither, ConfigError for a config that cannot be used.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        if path.suffix == ".json":
            raise ConfigError(f"{path}: no such model config file")
        return _load_shipped(_shipped(str(name_or_path)))
    return parse_model(_read(path), path)


@functools.cache
def _load_shipped(path: Path) -> ModelShape:
    return parse_model(_read(path), path)


def _shipped(name: str) -> Path:
    known = list_models()
    key = name.lower().rsplit("/", 1)[-1].removeprefix("meta-").replace("-instruct", "").removesuffix("-it")
    if key not in known:
        raise UnknownNameError("model", name, known)
    return MODEL_DIR / f"{key}.json"


def _read(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a readable config.json: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a config.json is a JSON object, got {type(config).__name__}")
    return config


__all__ = ["ACTIVATION_BYTES", "KV_BYTES", "WEIGHT_BYTES", "Experts", "Gemm", "Latent", "ModelShape", "dtype_name",
           "list_models", "load_model"]
