"""What the replicas of a run share, as the one bundle that the functions of the engines take."""

from typing import NamedTuple

from simulator.cost.step import Cost
from simulator.engines.clients import Clients
from simulator.state import Column, Limits, Requests


class Acceptance(NamedTuple):
    """How likely drafts are right; both columns are empty where none are made."""

    salts: Column      # (2,) 32-bit random numbers of this run
    chances: Column    # (k,) [2^-32] that the first 1, 2, ... k drafts of a step are all right, never rising


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
    acceptance: Acceptance
