"""Sample the GPU's clocks and power while a benchmark runs (read only), so that throttling can be seen."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

PERIOD_MS = 100


class ClockSampler:
    """Context manager around nvidia-smi's looping query of GPU 0; `row()` summarises once it has ended."""

    def __init__(self, nvidia_smi: Path, program: str) -> None:
        self._argv = [str(nvidia_smi), "--id=0", "--query-gpu=clocks.sm,power.draw,utilization.gpu"]
        self._argv += ["--format=csv,noheader,nounits", f"-lms={PERIOD_MS}"]
        self._program = program
        self._text = ""

    def __enter__(self) -> ClockSampler:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._text = self._process.communicate()[0]

    def row(self) -> dict[str, Any]:
        """SM clock (MHz) and power (W) while the GPU was busy; None where no sample was."""
        return {"program": self._program, **summarise(self._text)}


def summarise(text: str) -> dict[str, Any]:
    """Median, lowest and highest of the busy samples (utilisation >= 50 %) of the query's CSV text."""
    samples = [s for s in map(_numbers, text.splitlines()) if s is not None and s[2] >= 50]
    clocks, power = [s[0] for s in samples], [s[1] for s in samples]
    if not samples:
        return {"busy_samples": 0, "sm_clock_MHz": None, "sm_clock_min_MHz": None, "power_max_W": None}
    return {
        "busy_samples": len(samples),
        "sm_clock_MHz": statistics.median(clocks),
        "sm_clock_min_MHz": min(clocks),
        "power_max_W": max(power),
    }


def _numbers(line: str) -> tuple[float, float, float] | None:
    try:
        clock, power, busy = (float(x) for x in line.split(","))
    except ValueError:
        return None
    return clock, power, busy
