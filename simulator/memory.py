"""Memory of this machine, asked before a large piece of it is taken."""

import os
from pathlib import Path
from typing import Final

from simulator.errors import ConfigError
from simulator.units import GIB

REQUEST_BYTES: Final = 320
"""[bytes] of one request from drawing or reading it to the report: columns of the trace, of the engine and of
the results, with one copy for sorting."""


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
