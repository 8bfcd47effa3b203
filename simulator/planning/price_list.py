"""Prices of a plan as the list they often are: of more GPUs than are candidates."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.config import Document
from simulator.errors import ServecastError
from simulator.planning.names import gpu_name
from simulator.profiles.gpu import load_gpu

DEFAULT_GPU: Final = "h100-sxm"
"""The candidate where none is named."""
_log: Final = logging.getLogger("servecast")


def is_gpu(name: str) -> bool:
    """Whether there is such a GPU: a name or alias of a profile, or a profile's file."""
    try:
        return Path(name).is_file() if name.endswith((".yaml", ".yml")) else bool(load_gpu(name))
    except ServecastError:
        return False


def tell_left_out(key: str, names: Iterable[str]) -> None:
    """Say in one line whose prices no candidate asks for."""
    if lost := ", ".join(names):
        _log.warning("%s left out: no candidate has this GPU: %s", key, lost)


def gpus_in(data: Mapping[str, Any]) -> list[str]:
    """GPUs that a plan's data may use."""
    candidates = data.get("candidates")
    given = candidates.get("gpu") if isinstance(candidates, Mapping) else None
    names = DEFAULT_GPU if given is None else given
    beside = candidates.get("beside") if isinstance(candidates, Mapping) else None
    given = beside if isinstance(beside, list) else [beside]
    others = [each.get("gpu") for each in given if isinstance(each, Mapping)]
    return [gpu_name(str(each)) for each in [*(names if isinstance(names, list | tuple) else [names]), *others]]


def drop_prices(document: Document) -> None:
    """Leave out prices of GPUs that are no candidates: one list of prices serves many plans.

    That is said, but where `--set candidates.gpu=...` chose others than the file. Reserved and spot prices of no
    candidate at all stay, to be refused: they were asked about.
    """
    chosen, wanted = ("candidates", "gpu") in document.overridden, gpus_in(document.data)
    for section, key in ((None, "prices"), (None, "reserved_prices"), ("spot", "prices")):
        place = document.data.get(section) if section else document.data
        prices = place.get(key) if isinstance(place, Mapping) else None
        if not isinstance(place, Mapping) or not isinstance(prices, Mapping):
            continue
        lost = [name for name in prices if gpu_name(str(name)) not in wanted and (chosen or is_gpu(str(name)))]
        if not lost or (len(lost) == len(prices) and not chosen and (section or key) != "prices"):
            continue
        kept = {name: usd for name, usd in prices.items() if name not in lost}
        if section:
            document.data[section] = {**place, key: kept}
        else:
            document.data[key] = kept
        if not chosen:
            tell_left_out(f"{section}.{key}" if section else key, map(str, lost))
