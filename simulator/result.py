"""Result: what a simulation leaves, and which versions and profiles stand behind it."""

import platform
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.scenario.own import is_own, sha256_of
from simulator.state import Requests
from simulator.version import __version__

if TYPE_CHECKING:  # the readers of traces are heavy, and the metrics need a result's columns only
    from simulator.scenario.setup import Setup
    from simulator.scenario.spec import Scenario
    from simulator.workload.trace import Trace

Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class Result:
    """What a simulation leaves: request columns (N,), totals per replica, ITL histogram, optional step log.

    `totals` (R,) of records.Totals, `itl` (state.ITL_BINS,), `rows_time` (S+1,) wall ns by number of scheduled
    sequences, `pool_rows` (P, S+1) the same a pool or None, `log` (rows,) of records.LogRow sorted by (end, replica,
    start) or None. All int64.
    """

    setup: "Setup"
    trace: "Trace"
    requests: Requests
    totals: Records
    itl: Int64s
    rows_time: Int64s
    log: Records | None
    replication: int = 0
    pool_rows: Int64s | None = None
    again_ns: int = 0
    """[ns] from first to last token, summed over the attempts that a later one replaced."""
    fleet: Records | None = None
    """(rows,) of records.FleetRow: what happened to the fleet; None where it stays as it is."""

    @property
    def scenario(self) -> "Scenario":
        """The scenario that was run."""
        return self.setup.scenario

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Metrics as plain data; those that `simulator.run.simulate` gives have them."""
        raise NotImplementedError

    def provenance(self) -> dict[str, Any]:
        """Which versions, profiles, trace and seed stand behind the numbers. No wall-clock time, no paths."""
        setup = self.setup
        return {
            "servecast": __version__, "python": platform.python_version(), "numpy": np.__version__,
            "seed": self.scenario.seed, "replication": self.replication,
            "trace": {key: value for key, value in self.trace.meta.facts.items() if key != "account" or value},
            "gpu": {"name": setup.gpu.name, "mark": setup.gpu.mark},
            "engine": {"name": setup.engine.name, "version": setup.engine.version, "mark": setup.engine.mark},
            "host": {"name": setup.host.name, "mark": setup.host.mark, "cpu_scale": setup.host.cpu_scale},
            "cost_model": "unit" if setup.gpu.name == "unit" else self.scenario.cost_model,
            "policy": setup.policy.name, "policy_reference": setup.policy.reference,
        } | ({"policy_sha256": sha256_of(setup.policy)} if is_own(setup.policy) else {})
