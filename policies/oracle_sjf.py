"""Shortest true output first: what a perfect prediction would be worth. No engine can know it.

As `shortest_predicted` without error; the one policy that reads the true length, as a bound for the others.

Source: Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3 (1956): on one
machine, shortest first has the least mean time to completion of any order.
"""

from simulator.jit import jitable
from simulator.state import Limits, Requests


@jitable
def key(req: Requests, lim: Limits, i: int) -> int:
    """[tokens] of the answer."""
    return int(req.output[i])
