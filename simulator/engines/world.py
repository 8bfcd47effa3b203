"""What the replicas of a run share, as the one bundle that the functions of the engines take."""

from typing import Final, NamedTuple

from policies.signals import Signals
from simulator.cost.step import Cost
from simulator.engines.clients import Clients
from simulator.state import Column, Limits, Requests

LINK_BITS: Final = 20


class Links(NamedTuple):
    """Links over which replicas hand requests to others (engines/handover.py); empty where none does."""

    free: Column = ()       # (R,) [tick] when the link out of each replica can take the next request
    token_fp: Column = ()   # (R,) [2^-LINK_BITS ns] in which it sends the KV of a token
    latency: int = 0        # [ns]
    groups: int = 0         # a request's group (policies.routers) on the second half of its way is its first + this
    layers: int = 0         # of the model, where each is sent when it is computed; 0 = all are when all are


class Acceptance(NamedTuple):
    """How likely drafts are right; both columns are empty where none are made."""

    salts: Column      # (2,) 32-bit random numbers of this run
    chances: Column    # (k,) [2^-32] that the first 1, 2, ... k drafts of a step are all right, never rising


class Scaling(NamedTuple):
    """Autoscalers (engines/scaling.py); empty where the fleet is fixed."""

    scalers: Column      # (K,) records.Scaler
    shifts: Column       # (H,) records.Shift
    past: Column         # (K x ring,) records.Decision: the latest of each
    ring: int = 1


class Changes(NamedTuple):
    """What happens to replicas (engines/changes.py); empty where nothing does."""

    tick: Column             # (E,) [tick] when change k begins
    kind: Column             # (E,) CRASH, DRAIN, ...
    replica: Column          # (E,)
    lasts: Column            # (E,) [ns] from a crash, or from the last request, until it is back; or a factor
    roster: Column           # `routing` as it is when all are in service
    fleet: Column            # records.FleetRow, Control.fleet_rows of them written; empty where nothing changes
    scaling: Scaling
    groups: int = 0          # groups in the roster
    found_after: int = 0     # [ns] from a crash to the health check that finds it
    notice: int = 0          # [ns] that a replica has which is reclaimed
    retry: int = 0           # [ns] from the loss of a request until it is submitted again
    retries: int = 0         # times that it is, where Requests.losses counts them


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
    links: Links
    acceptance: Acceptance
    changes: Changes
    signals: Signals     # what the router knows
