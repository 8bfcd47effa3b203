"""Models by name or config.json: hwprofiles/models/*.json and a user's own files -> ModelShape."""

import difflib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hwprofiles import MODEL_DIR
from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.config_json import parse_model
from simulator.profiles.quantisation import ACTIVATION_BYTES, KV_BYTES, WEIGHT_BYTES, dtype_name
from simulator.profiles.shape import Experts, Gemm, Latent, ModelShape
from simulator.reading import ReadError, read_json


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


def repository(name: str) -> str:
    """Where the weights of a shipped model are: the Hugging Face repository that its config.json is of. Raises
    UnknownNameError."""
    source = str(_read(_shipped(name)).get("_source", ""))
    return source.partition(" config.json")[0].partition(",")[0]


@functools.cache
def _load_shipped(path: Path) -> ModelShape:
    return parse_model(_read(path), path)


_ENDINGS: Final = ("-instruct", "-chat", "-it", "-hf", "-base", "-4k", "-v0.1", "-17b-16e", "-17b-128e",
                   "-2407", "-2409", "-2410", "-2412", "-2501", "-2503", "-2506", "-0528")
"""What distinguishes checkpoints of one shape."""
_WRITTEN: Final = {"-instruct-2507": "-2507", "-thinking-2507": "-2507", "command-r-v01": "command-r",
                   "-awq-int4": "-awq", "-fp8-dynamic": "-fp8", "-fp8-kv": "-fp8", "-mini-4k": "-mini",
                   "mistral-nemo-instruct": "mistral-nemo-12b", "meta-": "", "c4ai-": ""}


def _shipped(name: str) -> Path:
    """File of a shipped model by the name people type: of the Hub, with or without what marks a chat version."""
    known = list_models()
    key = name.lower().rsplit("/", 1)[-1]
    for written, ours in _WRITTEN.items():
        key = key.replace(written, ours)
    for candidate in _shorter(key):
        if candidate in known:
            return MODEL_DIR / f"{candidate}.json"
    near = difflib.get_close_matches(key, known, 3)
    raise UnknownNameError("model", name, known, hint=f"did you mean {' or '.join(near)}?" if near else "")


def _shorter(key: str) -> Iterator[str]:
    """The key, then without its endings one by one, wherever they stand."""
    yield key
    for ending in _ENDINGS:
        if ending in key:
            key = key.replace(ending, "", 1)
            yield key


def _read(path: Path) -> dict[str, object]:
    try:
        config = read_json(path)
    except ReadError as error:
        raise ConfigError(f"{path}: not a readable config.json: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a config.json is a JSON object, got {type(config).__name__}")
    return config


__all__ = ["ACTIVATION_BYTES", "KV_BYTES", "WEIGHT_BYTES", "Experts", "Gemm", "Latent", "ModelShape", "dtype_name",
           "list_models", "load_model"]
