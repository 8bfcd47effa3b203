"""Shortest prompt first: of those that wait, the one with the fewest prompt tokens.

The prompt is known when a request arrives, so this needs no prediction; it shortens the mean time to first token where
prompts differ, and lets long ones wait as long as shorter ones come. Preempts as `priority` does, longest prompt first.

Source: shortest job first (Smith, "Various optimizers for single-stage production", Naval Research Logistics
Quarterly 3, 1956) with the prompt as the job; the mechanism is that of vLLM 0.24's PriorityRequestQueue.
"""

from simulator.jit import jitable
from simulator.state import Limits, Requests


@jitable
def key(req: Requests, lim: Limits, i: int) -> int:
    """[tokens] of the prompt."""
    return int(req.prompt[i])
