"""Memory of this machine, asked before a large piece of it is taken."""

import os
from pathlib import Path
from typing import Final

from simulator.errors import ConfigError
from simulator.units import GIB

REQUEST_BYTES: Final = 320
"""[bytes] of one request from drawing or reading it to the report: columns of the trace, of the engine and of
the results, with one copy for sorting."""


SLOT_BYTES: Final = 128
"""[bytes] of one slot of one replica in the engine, with two steps in flight."""
REPLICA_BYTES: Final = 32 * 1024
"""[bytes] of one replica beside its slots."""


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
