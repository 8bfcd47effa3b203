"""servecast: a discrete-event simulator and capacity planner for LLM serving.

Start with `load_scenario` and `simulate`. Names are resolved on first use, so importing costs little and the
policies can import simulator.kv without a cycle.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simulator.version import __version__

if TYPE_CHECKING:
    from simulator.planning.plan import plan
    from simulator.planning.spec import load_plan
    from simulator.report.plots import figures
    from simulator.run import Result, simulate
    from simulator.scenario.spec import Scenario, load_scenario, scenario_from
    from simulator.workload import Trace, load_trace

_HOME = {
    "Result": "run",
    "Scenario": "scenario.spec",
    "Trace": "workload",
    "figures": "report.plots",
    "load_plan": "planning.spec",
    "load_scenario": "scenario.spec",
    "load_trace": "workload",
    "plan": "planning.plan",
    "scenario_from": "scenario.spec",
    "simulate": "run",
}

__all__ = [
    "Result",
    "Scenario",
    "Trace",
    "__version__",
    "figures",
    "load_plan",
    "load_scenario",
    "load_trace",
    "plan",
    "scenario_from",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
