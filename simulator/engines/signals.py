"""What the router of a job knows, as columns."""

from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from policies.signals import Signals
from simulator.engines.job import Job
from simulator.memory import zeros_as_used


class Knows(NamedTuple):
    """How a router sees the replicas: fields of policies.signals.Signals; `prefixes`: whether it goes by them."""

    stale: int = 0
    prefixes: bool = False
    capacity: int = 0
    share: int = 500
    most_apart: int = 32
    factor: int = 1100


KNOWS_ALL: Final = Knows()


def add_signals(job: Job, knows: Knows) -> None:
    """Give the job a router that sees its replicas so; it sees all of them as they are otherwise."""
    arrays = not isinstance(job.reps, list)
    now = signals_now(job)
    if knows.stale:
        seen: Any = job.reps.front.copy() if arrays else [replace(rep.front) for rep in job.reps]
        now = now._replace(seen=seen, stale=knows.stale)
    if knows.prefixes:
        found: Any = job.reps.prefix.found if arrays else [rep.prefix.found for rep in job.reps]
        chain = job.reps.prefix.chain if arrays else job.reps[0].prefix.chain
        clock = np.zeros(job.replicas, dtype=np.int64)
        if knows.capacity:
            found = zeros_as_used((job.replicas, len(found[0])), np.int64)
            found = found if arrays else found.tolist()
        now = now._replace(chain=chain, held=found, clock=clock if arrays else clock.tolist(), capacity=knows.capacity,
                           block=job.lim.block_size, share=knows.share, most_apart=knows.most_apart,
                           factor=knows.factor)
    job.signals = now


def signals_now(job: Job) -> Signals:
    """What the router of the job knows."""
    if job.signals is not None:
        return job.signals
    none = np.zeros(0, dtype=np.int64)
    if isinstance(job.reps, list):
        return Signals([rep.front for rep in job.reps])
    return Signals(job.reps.front, chain=none, held=none.reshape(0, 0), clock=none)
