"""As many seeds as time allows, over worker processes: a crash or a hang of one is a finding, not the end."""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from policies.registry import POLICIES
from simulator.selftest.cases import Case, Uniform, some_case
from simulator.selftest.file import case_text
from simulator.selftest.shrink import shrunk
from simulator.selftest.trial import case_of, faults, with_simpy

HANG_S: Final = 120.0
"""[s] of computing: a case that takes longer does not end; compiling one engine takes a tenth of that."""
ALARM: Final = getattr(signal, "SIGPROF", None)
"""The signal that ends such a process; systems without it wait."""
BATCH: Final = 100
"""Seeds between two words of a worker."""


@dataclass
class Finding:
    """A seed that fails, what fails, and the smallest such case as YAML."""

    seed: int
    faults: list[str]
    text: str


@dataclass
class Soaked:
    """What was run and found."""

    compiled: int = 0
    """Cases run with and without leaps, invariants checked."""
    simpy: int = 0
    """Of them run on SimPy too."""
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    stopped: BaseException | None = None
    """The interruption that ended it: to be raised once what was run and found is said."""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    seed: Any
    first: int
    count: int | None
    """Of the seeds first, first + jobs, ... how many are its; None: as many as time allows."""


def soak(start: int, most: int | None, seconds: float, jobs: int, told: Callable[[Soaked], None] | None = None,
         findings: int = 10) -> Soaked:
    """Try the seeds start, start + 1, ... until `most` are tried, `seconds` are over, `findings` are found or
    the process is interrupted: what was found by then is returned all the same."""
    context = multiprocessing.get_context("spawn")
    begun, soaked = time.monotonic(), Soaked()
    share = [None if most is None else len(range(k, most, jobs)) for k in range(jobs)]
    workers = [_started(context, start + k, jobs, share[k]) for k in range(jobs) if share[k] != 0]
    try:
        while workers and len(soaked.findings) < findings and time.monotonic() < begun + seconds:
            ready = wait([each.pipe for each in workers], timeout=1.0)
            for worker in [each for each in workers if each.pipe in ready]:
                _hear(worker, workers, soaked, context, jobs)
            soaked.seconds = time.monotonic() - begun
            if told:
                told(soaked)
    except (KeyboardInterrupt, SystemExit) as stopped:
        soaked.stopped = stopped
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
    return soaked


def _hear(worker: _Worker, workers: list[_Worker], soaked: Soaked, context: Any, jobs: int) -> None:
    try:
        word = worker.pipe.recv()
    except EOFError:
        _lost(worker, soaked)
        workers.remove(worker)
        workers += _behind(worker, context, jobs)
        return
    if word is None:
        workers.remove(worker)
        worker.process.join()
    elif isinstance(word, Finding):
        soaked.findings.append(word)
    else:
        soaked.compiled += word[0]
        soaked.simpy += word[1]


def _lost(worker: _Worker, soaked: Soaked) -> None:
    """A worker that hung or has crashed: its case is a finding, unshrunk; another goes on behind it."""
    worker.process.join()
    code = worker.process.exitcode
    hung = ALARM is not None and code == -ALARM
    why = f"does not end in {HANG_S:.0f} s of computing" if hung else f"the process ended with {code}"
    seed = int(worker.seed.value)
    soaked.findings.append(Finding(seed, [why], case_text(case_of(seed))))


def _behind(worker: _Worker, context: Any, jobs: int) -> list[_Worker]:
    """The worker that goes on after the seed that a lost one was at; none where that was its last."""
    tried = (int(worker.seed.value) - worker.first) // jobs + 1
    left = None if worker.count is None else worker.count - tried
    return [] if left is not None and left <= 0 else [_started(context, worker.first + tried * jobs, jobs, left)]


def _started(context: Any, first: int, step: int, count: int | None) -> _Worker:
    ours, theirs = context.Pipe(duplex=False)
    seed = context.Value("q", first)
    process = context.Process(target=_work, args=(theirs, seed, first, step, count), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours, seed, first, count)


def _limited() -> None:
    """From now on HANG_S of computing are left; then the system ends the process, whatever it is doing."""
    if ALARM is not None:
        signal.setitimer(signal.ITIMER_PROF, HANG_S)


def _work(pipe: Connection, current: Any, first: int, step: int, count: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    for policy in POLICIES:  # compiles where that has not been done
        _limited()
        faults(some_case(Uniform(0), {"policy": policy}), simpy=False)
        pipe.send((0, 0))
    gc.freeze()  # the compiler's objects need not be searched again
    done = 0
    while os.getppid() == parent and (count is None or done < count):
        size = BATCH if count is None else min(BATCH, count - done)
        seeds = range(first + done * step, first + (done + size) * step, step)
        for seed in seeds:
            _limited()
            current.value = seed
            wrong = faults(case_of(seed), with_simpy(seed))
            if wrong:
                pipe.send(finding(seed, wrong))
        pipe.send((size, sum(map(with_simpy, seeds))))
        done += size
    pipe.send(None)


def finding(seed: int, wrong: list[str]) -> Finding:
    """The smallest case found that fails as this seed does: in the same engine, by the same invariant or error. What
    else may be wrong with a smaller case is another finding's."""
    kinds = _kinds(wrong)

    def fails(case: Case) -> bool:
        return bool(kinds & _kinds(faults(case)))

    small = shrunk(case_of(seed), fails)
    return Finding(seed, faults(small) or wrong, case_text(small))


def _kinds(wrong: list[str]) -> set[str]:
    return {fault.partition(":")[0] for fault in wrong}
