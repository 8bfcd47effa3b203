"""Which engine runs a job when nobody says, and how compiled code is made for the next time.

Compiling an engine takes a minute or more, once for each version and engine. Both engines give equal results, so a
job that SimPy can do in less runs on SimPy, and a process in the background compiles for the next time: detached,
at the lowest priority, one at a time, ended by the clock should it hang. $SERVECAST_COMPILE says otherwise:
`wait` compiles first and runs then, `off` never starts a process.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Literal

import numpy as np

from policies.registry import POLICIES, Policy
from simulator import jit
from simulator.code_cache import tell_compiling, tell_once
from simulator.engines.fast import code_name, run_fast
from simulator.errors import ConfigError
from simulator.jit import code_cache
from simulator.scenario.job import build_job
from simulator.scenario.own import is_own
from simulator.scenario.setup import Setup, prepare
from simulator.scenario.spec import scenario_from
from simulator.state import Limits
from simulator.workload.build import build_trace
from simulator.workload.trace import Trace

MODES: Final = ("background", "wait", "off")
LONGEST_S: Final = 8.0
"""Jobs that may take SimPy longer than this are compiled first: about what compiling takes."""
STEP_S: Final = 12.5e-6
TOKEN_S: Final = 2.2e-6
ROUTE_S: Final = 0.2e-6
"""SimPy's time a step, a token, and a request and replica to route to; measured: docs/performance.md."""
MOST_CELLS: Final = 1_000_000
"""Slots of all replicas: the lists that SimPy works on take some 100 bytes for each."""
ATTEMPTS: Final = 3
LIMIT_S: Final = 900
"""A background process ends itself after so long."""
MEANWHILE: Final = (
    "a background process compiles it meanwhile, in one minute or several, as the machine is busy; until then small "
    "runs go on SimPy (SERVECAST_COMPILE=wait compiles first, off starts none)"
)
_STARTED: Final = b"compiling\n"
_children: Final[dict[str, "subprocess.Popen[bytes]"]] = {}


def choose(setup: Setup, trace: Trace) -> Literal["fast", "reference"]:
    """The engine for a job: the compiled one, unless it is still to be made and SimPy is done before that.

    Raises ConfigError when $SERVECAST_COMPILE is none of MODES.
    """
    wanted, policy = mode(), setup.policy.name
    if wanted == "wait" or code_cache().has(code_name(setup.policy)) or not is_small(setup, trace):
        return "fast"
    started = wanted == "background" and compile_later(policy)
    if wanted == "background" and not started and _attempts(policy) >= ATTEMPTS:
        tell_once(f"{policy}: compiling in the background has not come to its end {ATTEMPTS} times; compiling now")
        return "fast"
    later = f"; {MEANWHILE}" if started else ""
    tell_once(f"{policy}: few requests and no compiled engine yet, so SimPy runs this, with the same results{later}")
    return "reference"


def announce(policies: Iterable[Policy]) -> None:
    """Say which engines worker processes are about to compile, before they start."""
    cache = code_cache()
    for name in dict.fromkeys(code_name(policy) for policy in policies):
        if not jit.is_interpreted() and not cache.has(name):
            tell_compiling(name)


def to_compile(setup: Setup) -> str:
    """What the compiled engine of a job is called that is not there yet, as in what is told then; empty: it is."""
    return uncompiled([setup.policy])[0]


def uncompiled(policies: Iterable[Policy]) -> list[str]:
    """The same of the engines of policies, in order."""
    cache, found = code_cache(), []
    for policy in policies:
        name = code_name(policy)
        shown = "your policy" if is_own(policy) else name.removeprefix("engine-")
        found.append("" if jit.is_interpreted() or cache.has(name) else shown)
    return found


def compiled_first(setup: Setup, trace: Trace, engine: str) -> str:
    """What is compiled before the first step of a job on the engine asked for; empty: nothing is."""
    on_simpy = engine == "reference" or (engine == "auto" and mode() != "wait" and is_small(setup, trace))
    return "" if on_simpy else to_compile(setup)


def mode() -> str:
    """$SERVECAST_COMPILE. Raises ConfigError when it is none of MODES."""
    given = os.environ.get("SERVECAST_COMPILE") or MODES[0]
    if given not in MODES:
        raise ConfigError(f"SERVECAST_COMPILE must be one of {', '.join(MODES)}, got {given}")
    return given


def is_small(setup: Setup, trace: Trace) -> bool:
    """Whether SimPy does the job in LONGEST_S, even if every token and every chunk of a prompt takes a step."""
    limits, replicas = setup.limits, setup.scenario.cluster.size
    if replicas * limits.max_num_seqs > MOST_CELLS:
        return False
    return simpy_seconds(trace, limits, replicas) <= LONGEST_S


def simpy_seconds(trace: Trace, limits: Limits, replicas: int) -> float:
    """[s] upper estimate of the reference engine's time."""
    tokens = float(np.sum(trace.output, dtype=np.float64))
    chunks = float(np.sum(trace.prompt, dtype=np.float64)) / max(limits.max_num_batched_tokens, 1) + len(trace)
    return (STEP_S + TOKEN_S) * (tokens + chunks) + ROUTE_S * len(trace) * replicas


def compile_later(policy: str) -> bool:
    """Have a process compile the engine of a policy; False where that, or keeping the code, is not possible.

    The process has a session of its own, so Ctrl-C in this terminal does not reach it.
    """
    cache = code_cache()
    possible = policy in POLICIES and sys.executable and cache.writable() and _attempts(policy) < ATTEMPTS
    if not possible or cache.folder is None:
        return False
    with cache.alone(_queue(policy), 0) as free:
        if not free:
            return True
    if policy in _children and _children[policy].poll() is None:
        return True
    path = [os.path.abspath(each) for each in sys.path]  # '' is the working folder
    code = f"import sys; sys.path[:] = {path!r}; from simulator.engine_choice import work; work({policy!r})"
    try:
        with open(cache.folder / _log_name(policy), "ab") as log:
            _children[policy] = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=log, start_new_session=True, cwd=cache.folder)
    except OSError:
        return False
    return True


def work(policy: str) -> None:
    """What the background process does: nothing when one for this policy is there, else wait its turn and compile."""
    if hasattr(signal, "alarm"):
        signal.alarm(LIMIT_S)
    if hasattr(os, "nice"):
        os.nice(19)
    cache = code_cache()
    with cache.alone(_queue(policy), 0) as first, cache.alone("background", LIMIT_S if first else 0):
        if not first or cache.has(_code(policy)):
            return
        os.write(1, _STARTED)
        jit.waits_for_others = False  # and nobody waits for this process, which may be slow
        compile_now(policy)
        assert cache.folder is not None
        with suppress(OSError):
            (cache.folder / _log_name(policy)).unlink()


def compile_now(policy: str) -> None:
    """Compile the engine of a policy, or load it: a run of one token."""
    asks = {"output": [1], "priority": 0, "predicted": 1, "ttft_target_s": 1.0}
    scenario = scenario_from({"name": policy, "workload": {"requests": asks}, "hardware": "unit", "policy": policy})
    setup = prepare(scenario)
    run_fast(build_job(setup, build_trace(scenario.parsed_workload(), 0), True, False), setup.policy)


def _code(policy: str) -> str:
    """What the engine of a policy is called; a user's own policy, which nobody compiles here, has its name."""
    return code_name(POLICIES[policy]) if policy in POLICIES else f"engine-{policy}"


def _queue(policy: str) -> str:
    """Name of the lock that a background process for this policy holds, waiting or compiling."""
    return f"{_code(policy)}-queue"


def _log_name(policy: str) -> str:
    return f"{_code(policy)}.log"


def _attempts(policy: str) -> int:
    """How often a process has begun to compile, since one last came to its end."""
    folder = code_cache().folder
    try:
        return (folder / _log_name(policy)).read_bytes().count(_STARTED) if folder else 0
    except OSError:
        return 0
