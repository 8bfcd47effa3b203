"""What the replicas of a run share, as the one bundle that the functions of the engines take."""

from typing import NamedTuple

from simulator.cost.step import Cost
from simulator.engines.clients import Clients
from simulator.state import Column, Limits, Requests


class World(NamedTuple):
    """Everything of a run but its replicas, as one of a pool sees it."""

    req: Requests
    lim: Limits
    cost: Cost
    clients: Clients
    itl: Column          # (ITL_BINS,) gaps between tokens, counted by state.log_bin_edges
    rows_time: Column    # (S+1,) [ns] wall time by number of scheduled sequences
    log: Column          # LogRow; empty where no step log is kept
    routing: Column      # numbers of the router
