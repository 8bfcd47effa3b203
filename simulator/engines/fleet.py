"""What happens to the fleet of a job: room for the events, and for what they leave."""

import numpy as np

from policies.routers import GROUPS, START, WIDTH
from simulator.engines.future import Future
from simulator.engines.job import Job
from simulator.engines.members import more_rows, rows_an_event
from simulator.engines.plans import Plans, changes_of, records_of
from simulator.records import FleetRow


def add_changes(job: Job, plans: Plans, arrays: bool) -> None:
    """Give the job what happens to its replicas, and room for these events.

    Raises ConfigError for windows of autoscalers that are too long.
    """
    groups = (job.routing[GROUPS + START] - GROUPS) // WIDTH
    job.changes = changes_of(plans, job.routing, int(groups), arrays)
    events = 3 * len(plans.rows) + 4 * job.replicas
    for scaler in plans.scalers:
        often = min(scaler.sync, scaler.polling or scaler.sync)
        events += 2 + scaler.count * (8 + scaler.start // often + scaler.grace // often)
    room = np.zeros(len(job.future.tick) + events, dtype=np.int64)
    job.future = Future(room, room.copy()) if arrays else Future(room.tolist(), room.tolist())
    if arrays:
        job.changes = job.changes._replace(fleet=records_of((), FleetRow, 256 + rows_an_event(job.replicas)))
    else:
        more_rows(job.changes.fleet, job.ctl, job.replicas)


def room_for_an_event(job: Job) -> None:
    """Room for what an event may write (array jobs)."""
    fleet = job.changes.fleet
    if int(job.ctl["fleet_rows"][0]) + rows_an_event(job.replicas) > len(fleet):
        job.changes = job.changes._replace(fleet=np.concatenate([fleet, np.zeros_like(fleet)]))
