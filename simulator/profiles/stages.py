"""Pipeline parallelism as memory sees it: the stage that holds most (vLLM 0.24, get_pp_indices)."""

from dataclasses import replace

from simulator.errors import ConfigError
from simulator.profiles.shape import ModelShape


def largest_stage(model: ModelShape, stages: int) -> ModelShape:
    """The layers of one of `stages` with one table, the embedding of the first stage or the head of the last. Where the
    stages are uneven the longest is taken to hold a table too, which vLLM avoids: at most that table too much.

    Raises ConfigError for more stages than layers, and for models whose layers are not alike.
    """
    if not 1 <= stages <= model.layers:
        raise ConfigError(f"pipeline stages must be 1 to {model.layers}, the layers of {model.name}, got {stages}")
    if stages == 1:
        return model
    if model.windows or model.encoder_parameters or (model.experts and model.experts.dense_layers):
        raise ConfigError(f"{model.name} has layers that are not alike: how they share its memory in pipeline stages "
                          "is not modelled")
    return replace(model, layers=-(-model.layers // stages), tied_embeddings=True)
