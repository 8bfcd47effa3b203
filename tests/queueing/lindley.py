"""M/M/1 and its like by Lindley's recursion (Lindley 1952, doi 10.1017/S0305004100027638), whole arrays at once."""

import math
from typing import Any, NamedTuple

import numpy as np


class Queue(NamedTuple):
    """One server, first come first served; times in mean services, columns of shape (N,)."""

    arrivals: Any
    waits: Any
    ends: Any


def single_server(arrivals: Any, services: Any) -> Queue:
    """End of request n = max over k <= n of (arrival k + services k..n)."""
    done = np.cumsum(services)
    ends = done + np.maximum.accumulate(arrivals - (done - services))
    return Queue(arrivals, ends - services - arrivals, ends)


def mm1(rho: float, requests: int, seed: int | list[int]) -> Queue:
    """Poisson arrivals at rate `rho`, exponential services of mean 1."""
    rng = np.random.default_rng(seed)
    return single_server(np.cumsum(rng.exponential(1 / rho, requests)), rng.exponential(1.0, requests))


def wait_quantile(rho: float, share: float) -> float:
    """P(W > t) = rho exp(-(1 - rho) t) (Kleinrock, Queueing Systems I, 1975, 5.4)."""
    return max(0.0, math.log(rho / (1 - share)) / (1 - rho))
