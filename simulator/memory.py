"""Memory of this machine, asked before a large piece of it is taken, and taken as it is used."""

import math
import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulator.errors import ConfigError
from simulator.units import GIB

REQUEST_BYTES: Final = 320
"""[bytes] of one request from drawing or reading it to the report: columns of the trace, of the engine and of
the results, with one copy for sorting."""


SLOT_BYTES: Final = 128
"""[bytes] of one slot of one replica in the engine, with two steps in flight."""
REPLICA_BYTES: Final = 32 * 1024
"""[bytes] of one replica beside its slots."""


LARGE: Final = 2**24
"""[bytes] from which a table is mapped for itself."""


def zeros_as_used(shape: tuple[int, ...], dtype: Any) -> Any:
    """A table of zeros of which only what is written takes memory, page by page.

    numpy asks for huge pages (Linux, MADV_HUGEPAGE from 4 MiB on), and one number written in a row then takes 2 MiB.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, size)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype=dtype).reshape(shape)


def free_bytes() -> int | None:
    """[bytes] that can be taken without swapping; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def check_requests(count: float, what: str) -> None:
    """Raise ConfigError, starting with `what`, when so many requests do not fit the free memory."""
    free = free_bytes()
    if free is not None and count * REQUEST_BYTES > free:
        raise ConfigError(f"{what}: {count:,.0f} requests need {count * REQUEST_BYTES / GIB:,.0f} GiB of memory, "
                          f"{free / GIB:,.0f} GiB are free; accepted here: at most {free // REQUEST_BYTES:,}")


def check_slots(replicas: int, slots: int, what: str) -> None:
    """Raise ConfigError, starting with `what`, when the engine's tables do not fit the free memory; `slots` a replica
    are those that can be held at a time."""
    free, need = free_bytes(), replicas * (slots * SLOT_BYTES + REPLICA_BYTES)
    if free is not None and need > free:
        raise ConfigError(f"{what}: {replicas:,} replicas x {slots:,} slots that can be held at a time need "
                          f"{need / GIB:,.0f} GiB of memory, {free / GIB:,.0f} GiB are free")
