"""Shortest predicted output first: shortest job first with a guess of the answer's length.

The guess is a column of the trace (`predicted`), or made from the true length with an error: times a lognormal factor
of median 1 whose logarithm has the standard deviation `prediction_error`. The policy never sees the true length;
`oracle_sjf` does, and bounds what a better guess is worth. Preempts as `priority` does, longest guess first.

Source: Fu et al., "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024 (section 3: order by predicted length in
the waiting queue of vLLM); Qiu et al., "Efficient Interactive LLM Serving with Proxy Model-based Sequence Length
Prediction", AIOps 2024. The lognormal error is an assumption.
"""

from simulator.jit import jitable
from simulator.state import Limits, Requests


@jitable
def key(req: Requests, lim: Limits, i: int) -> int:
    """[tokens] predicted for the answer."""
    return int(req.predicted[i])
