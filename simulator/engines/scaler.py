"""Records of an autoscaler, one int64 a field as in simulator/records.py: its rules, its schedule, what it decided."""

from dataclasses import dataclass


@dataclass(slots=True)
class Scaler:
    """An autoscaler: its rules, as simulator/scenario/autoscale.py sets them, and what it remembers."""

    pool: int = 0
    first: int = 0           # its replicas: first .. first + count - 1, count is the most there can be
    count: int = 0
    low: int = 0             # least replicas
    keda: int = 0            # 1 = KEDA's external metric, 0 = Kubernetes' metric of pods
    metric: int = 0          # a code of engines/scaling.py
    target: int = 0          # [1/1000]
    tolerance: int = 0       # [1/1000]
    sync: int = 0            # [ns] between decisions
    up_window: int = 0       # [ns] of recommendations of which the lowest counts when scaling up
    down_window: int = 0     # ... the highest when scaling down
    up_pods: int = 0         # most replicas added in a period, by number
    up_percent: int = 0      # ... by share; the larger of both holds
    up_period: int = 0       # [ns]
    down_pods: int = 0
    down_percent: int = 0
    down_period: int = 0
    pending: int = 0         # [ns] of its start in which a replica is pending: node and image
    start: int = 0           # [ns] from ordering a replica until it serves
    grace: int = 0           # [ns] that a replica has for its last requests, 0 = as long as they take
    ttft_window: int = 0     # [ns] of first tokens whose mean is read
    polling: int = 0         # [ns] between KEDA's looks whether anything is to be done, 0 = never
    cool_down: int = 0       # [ns] without anything before the last replica goes
    activation: int = 0      # [1/1000] above which there is something to do
    history: int = 0         # decisions through which a forecast lays its line, 0 = none is made
    ahead: int = 0           # [1/1000 of `sync`] how far it looks
    wanted: int = 0
    members: int = 0         # replicas ordered and not leaving
    active: int = 0          # [tick] when there was last something to do
    done: int = 0            # first request that may have got a first token in the window
    n_past: int = 0          # decisions so far


@dataclass(slots=True)
class Shift:
    """Replicas wanted at certain times."""

    scaler: int = 0
    begin: int = 0           # [ns] of each `every`
    end: int = 0
    every: int = 0           # [ns]
    replicas: int = 0


@dataclass(slots=True)
class Decision:
    """A decision of an autoscaler."""

    tick: int = 0
    asked: int = 0           # replicas that the formula asked for, where a forecast is made
    recommended: int = 0
    change: int = 0          # replicas ordered, or released where negative
