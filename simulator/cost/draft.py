"""What drafts cost on the GPU: the passes of a draft model after each step.

A draft of k tokens takes k passes: the first over all tokens of the step, whose keys and values it writes too, the
others over one token a sequence (vLLM 0.24 vllm/v1/worker/gpu/spec_decode/autoregressive/speculator.py). Each pass
reads the draft's weights, its head's, and its own layers' KV of the context. Drafts found in the text take none.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.cost.device import PREFILL_SAMPLES, Device
from simulator.profiles.engine import EngineProfile
from simulator.profiles.host import Host, HostTimes
from simulator.profiles.shape import Gemm

Array = npt.NDArray[np.float64]

PASS_S: Final = 60e-6
"""[s] of a pass besides its products: inputs and attention metadata rebuilt, the token chosen. Fitted on the output
gaps of one H200 (calibration/measurements/llama8b-h200-eagle, batch_*)."""
SEARCH_S: Final = 0.41e-3
SEARCH_SEQUENCE_SHARE: Final = 1.0 / 3.0
"""[s] by which a step without planning ahead is prepared longer where its drafts are searched in the text, and the
share of the usual time per sequence that it takes. Fitted on the output gaps of one H200 (calibration/measurements/
llama8b-h200-ngram, batch_*, steps whose sequences all have drafts): 2.2, 1.9 and 2.0 ms more than the GPU's work at 1,
8 and 32 sequences. They run on the older model runner, so part of it may be that runner's."""


@dataclass(frozen=True)
class Drafting:
    """A draft model on its device, None where there is none; `queries` tokens a sequence in a pure decode step."""

    device: Device | None
    queries: int
    passes: int

    @property
    def layers(self) -> int:
        """Layers of the draft."""
        return self.device.model.layers if self.device else 0

    def dense_s(self, rows: npt.NDArray[np.int64], kind: int) -> Array:
        """[s] of all passes after a step of `rows` tokens (kind 0 pure decode, 1 with prefill), attention apart."""
        tokens = rows.astype(np.float64)
        if self.device is None:
            return np.zeros_like(tokens)
        sequences = np.minimum(tokens, PREFILL_SAMPLES) if kind == 1 else np.ceil(tokens / self.queries)
        model = self.device.model
        later = self.device.layers_s(sequences) + self.device.head_s(sequences)
        first = self.device.layers_s(tokens) + self.device.head_s(sequences)
        if model.fused_input:
            fuse = Gemm("fuse", model.hidden, model.fused_input * model.hidden)
            first = first + self.device.products_s(tokens, [fuse], "attention")
        return first + (self.passes - 1) * later + self.passes * PASS_S * self.device.gpu.time_scale


def searching(times: HostTimes, host: Host, engine: EngineProfile) -> HostTimes:
    """CPU times of `engine` on `host` when drafts are searched in the text after each step."""
    more = SEARCH_S * host.cpu_scale * engine.cpu_work
    return times.replace(decode_prep_s=times.decode_prep_s + more,
                         decode_prep_worker_s=times.decode_prep_worker_s + more,
                         prefill_prep_s=times.prefill_prep_s + more,
                         prefill_prep_worker_s=times.prefill_prep_worker_s + more,
                         sequence_cpu_s=times.sequence_cpu_s * SEARCH_SEQUENCE_SHARE,
                         sequence_cpu_worker_s=times.sequence_cpu_worker_s * SEARCH_SEQUENCE_SHARE)
