"""Names in a plan: looked up when it is read, so that a typing error is one and not a GPU that does not fit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from policies.registry import policy_named
from policies.routers import ROUTERS
from simulator.config import Document
from simulator.errors import ConfigError, ServecastError, UnknownNameError
from simulator.profiles.beside import model_beside
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.host import load_host
from simulator.profiles.model import KV_BYTES, WEIGHT_BYTES, dtype_name, load_model

MOVED: Final = {
    "policy.name": "candidates.policy",
    "policy.max_num_seqs": "candidates.max_num_seqs",
    "policy.max_num_batched_tokens": "candidates.max_num_batched_tokens",
    "policy.tbt_s": "candidates.tbt_s",
    "hardware.gpu": "candidates.gpu",
    "hardware.tensor_parallel": "candidates.tensor_parallel",
    "hardware.pipeline_parallel": "candidates.pipeline_parallel",
    "hardware.weight_dtype": "candidates.weight_dtype",
    "hardware.kv_dtype": "candidates.kv_dtype",
    "hardware.expert_parallel": "candidates.expert_parallel",
    "hardware.gpu_memory_utilization": "gpu_memory_utilization",
    "hardware.step_s": "step_s",
    "cluster.replicas": "candidates.replicas",
    "cluster.router": "candidates.router",
    "cluster.link": "link",
    "cluster.pools": "candidates.beside or candidates.prefill_replicas",
    "gpu": "candidates.gpu",
    "replicas": "candidates.replicas",
}
"""Keys of a scenario, and what a plan calls them."""
MOST_USD: Final = 1e6
"""[USD per GPU and hour] No price is higher: sums and months of it stay numbers."""
SHORT: Final = {"policy": "policy.name", "hardware": "hardware.gpu"}


def scenario_keys(document: Document) -> None:
    """Raise ConfigError for a key that a scenario has and a plan calls otherwise, naming the one that works."""
    for section in ("policy", "hardware", "cluster", "load", "horizon_s", "gpu", "replicas"):
        if section not in document.data:
            continue
        value = document.data[section]
        names = [f"{section}.{key}" for key in value] if isinstance(value, Mapping) else [SHORT.get(section, section)]
        for name in names:
            where = document.where(tuple(name.split(".")))
            use = f"; in a plan it is {MOVED[name]}" if name in MOVED else "; a plan has no such key"
            raise ConfigError(f"{where}: {name} is a key of a scenario{use}")


def gpu_name(name: str) -> str:
    """The profile's own name of a GPU given by an alias; an unknown one as it is."""
    try:
        return name if name.endswith((".yaml", ".yml")) else load_gpu(name).path.stem
    except ServecastError:
        return name


def check_prices(key: str, prices: Mapping[str, float], known: Sequence[str]) -> None:
    """Raise ValueError for a price of a GPU that is not asked about, one that cannot be, and two of one GPU."""
    seen: dict[str, str] = {}
    for given, price in prices.items():
        gpu = gpu_name(given)
        if gpu not in known:
            raise ValueError(f"{key}.{given} has no effect: no such GPU among candidates.gpu "
                             f"({', '.join(dict.fromkeys(known))})")
        if not price > 0:
            raise ValueError(f"{key}.{given} must be > 0, got {price}")
        if price > MOST_USD:
            raise ValueError(f"{key}.{given} must be <= {MOST_USD:.0f} USD per GPU and hour, got {price}")
        if gpu in seen:
            raise ValueError(f"{key}.{given}: the price of {gpu} is given twice, as {seen[gpu]} and as {given}")
        seen[gpu] = given


def check_names(document: Document, base: Path, values: Mapping[str, Iterable[Any]]) -> None:
    """Look up every name of the plan. Raises ConfigError: `file:line: key: unknown ... (did you mean ...?)`."""
    lookups: dict[str, Callable[[Any], object]] = {
        "candidates.gpu": load_gpu,
        "candidates.policy": policy_named,
        "candidates.router": _router,
        "candidates.weight_dtype": lambda name: dtype_name(name, WEIGHT_BYTES),
        "candidates.kv_dtype": lambda name: dtype_name(name, KV_BYTES),
        "engine.name": load_engine,
        "host.name": load_host,
        "model": lambda name: load_model(model_beside(base, name)),
        "candidates.model": lambda name: load_model(model_beside(base, name)),
    }
    lookups |= {f"candidates.beside.{key}": lookups[f"candidates.{key}"] for key in ("gpu", "weight_dtype", "kv_dtype")}
    for key, lookup in lookups.items():
        for name in values[key]:
            try:
                if name is not None:
                    lookup(name)
            except ConfigError as error:
                raise ConfigError(f"{document.where(tuple(key.split('.')))}: {key}: {error}") from None


def _router(name: str) -> None:
    if name not in ROUTERS:
        raise UnknownNameError("router", name, ROUTERS)


def gpu_words(gpu: str, tensor_parallel: int, pipeline_parallel: int) -> list[str]:
    """`h200-sxm`, `TP2`, `PP2`: the GPUs of a replica, "" for what is 1."""
    return [gpu, *(f"{short}{size}" if size > 1 else ""
                   for short, size in (("TP", tensor_parallel), ("PP", pipeline_parallel)))]


def limit_words(max_num_seqs: int | None, max_num_batched_tokens: int | None) -> list[str]:
    """`seqs 128`, `tokens 2048`: the batch limits of a replica, "" for what is not given."""
    return [f"{short} {limit}" if limit else ""
            for short, limit in (("seqs", max_num_seqs), ("tokens", max_num_batched_tokens))]
