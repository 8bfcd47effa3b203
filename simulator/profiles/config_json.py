"""A Hugging Face config.json -> ModelShape: what each model type says, and what is refused by its right name.

Layouts follow the model code of Hugging Face transformers 4.5x and vLLM 0.24 (model_executor/models). Of a
multimodal model the text part is read; its encoder counts where `_encoder_parameters` gives its size.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.errors import ConfigError
from simulator.profiles.quantisation import parse_format
from simulator.profiles.shape import Experts, Latent, ModelShape

Config = Mapping[str, Any]

REFUSED: Final[Mapping[str, str]] = {
    "mamba": "a state-space model", "mamba2": "a state-space model", "falcon_mamba": "a state-space model",
    "jamba": "a hybrid of state-space and attention layers", "bamba": "a hybrid of state-space and attention layers",
    "nemotron_h": "a hybrid of state-space and attention layers", "zamba2": "a hybrid of state-space layers",
    "falcon_h1": "a hybrid of state-space and attention layers",
    "qwen3_next": "gated delta-net (linear attention) layers", "qwen3_5": "gated delta-net (linear attention) layers",
    "qwen3_5_moe": "gated delta-net (linear attention) layers", "kimi_linear": "linear attention layers",
    "minimax_m1": "lightning (linear) attention layers", "minimax": "lightning (linear) attention layers",
    "rwkv": "a recurrent model", "recurrent_gemma": "a recurrent model",
    "deepseek_v32": "sparse attention with an index (DeepSeek sparse attention)",
    "deepseek_v4": "compressed sparse attention",
    "mllama": "cross-attention layers to an image encoder", "t5": "an encoder-decoder", "bart": "an encoder-decoder",
    "whisper": "an encoder-decoder", "bert": "an encoder", "roberta": "an encoder", "gemma3n": "per-layer embeddings",
    "gemma4": "layers of different head sizes", "phimoe": "norms with biases and a sparse mixer",
}
"""Model types that are known and not modelled, with the reason."""


def parse_model(config: Config, path: Path) -> ModelShape:
    """Shape from the content of a config.json; `path` gives name and messages. Raises ConfigError."""
    kind = str(config.get("model_type"))
    if kind in REFUSED:
        verb = "is" if REFUSED[kind].startswith(("a ", "an ")) else "has"
        raise ConfigError(f"{path}: model_type {kind!r} {verb} {REFUSED[kind]}: not modelled")
    if kind not in FAMILIES:
        raise ConfigError(f"{path}: model_type must be one of {', '.join(sorted(FAMILIES))}, got {kind!r}")
    text = _text_part(config, path)
    read = FAMILIES.get(str(text.get("model_type")), FAMILIES[kind])
    try:
        shape = dataclasses.replace(
            read(text, path), name=_name(path), model_type=kind, architectures=_architectures(config, kind, path),
            encoder_parameters=int(config.get("_encoder_parameters", 0)), not_counted=_encoder(config))
    except (TypeError, ValueError, AttributeError) as error:  # a list where a number is due, and the like
        raise ConfigError(f"{path}: a value is not of the kind its key needs: {error}") from error
    shape.check_tp(1)
    if shape.windows and len(shape.windows) != shape.layers:
        raise ConfigError(f"{path}: layer_types must name {shape.layers} layers, got {len(shape.windows)}")
    return dataclasses.replace(shape, weights=parse_format({**config, **_formats(config, text)}, shape.modules(), path))


def _architectures(config: Config, kind: str, path: Path) -> tuple[str, ...]:
    """Classes that the checkpoint names; of a config.json without them the one that its model_type stands for."""
    given = config.get("architectures") or ([CLASSES[kind]] if kind in CLASSES else [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{path}: architectures must be a list of class names, got {given!r}")
    return tuple(given)


def _text_part(config: Config, path: Path) -> Config:
    """The language model's own block of a multimodal config, filled up from the outer one."""
    block = config.get("text_config", config.get("llm_config"))
    if block is None:
        return config
    if not isinstance(block, dict):
        raise ConfigError(f"{path}: text_config must be a mapping, got {type(block).__name__}")
    outer = {key: value for key, value in config.items() if key not in ("text_config", "llm_config", "model_type")}
    return {**outer, **block}


def _formats(config: Config, text: Config) -> Config:
    """Number format and quantisation, wherever a multimodal config keeps them."""
    keys = ("torch_dtype", "dtype", "quantization_config", "compression_config")
    return {key: text[key] for key in keys if key in text and key not in config}


def _encoder(config: Config) -> str:
    has = any(key in config for key in ("vision_config", "audio_config", "speech_config"))
    return "the vision or audio encoder" if has and "_encoder_parameters" not in config else ""


def _name(path: Path) -> str:
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.name.removesuffix(".json").removesuffix(".config")


def _decoder(config: Config, path: Path, **special: Any) -> ModelShape:
    """What Llama and most decoders after it share: RMS norms, rotary embedding, gated MLP."""
    heads, hidden = _size(config, "num_attention_heads", path), _size(config, "hidden_size", path)
    bias = bool(config.get("attention_bias", False))
    values: dict[str, Any] = {
        "name": "", "layers": _size(config, "num_hidden_layers", path), "hidden": hidden, "heads": heads,
        "intermediate": 0 if "intermediate" in special else _size(config, "intermediate_size", path),
        "kv_heads": _size(config, "num_key_value_heads", path, heads),
        "head_dim": _size(config, "head_dim", path, max(1, hidden // heads)),
        "vocab": _size(config, "vocab_size", path), "max_positions": _positions(config, path),
        "gated_mlp": True, "tied_embeddings": bool(config.get("tie_word_embeddings", False)), "qkv_bias": bias,
        "output_bias": bias, "mlp_bias": bool(config.get("mlp_bias", False))}
    values["windows"] = _windows(config, values["layers"], path)
    latent = special.get("latent")
    values["rotary"] = _rotary(config, path, latent.rope_dim if latent else values["head_dim"])
    return ModelShape(**{**values, **special})


def _windows(config: Config, layers: int, path: Path, pattern: Callable[[int], bool] = lambda layer: True
             ) -> tuple[int, ...]:
    """Window of each layer: by `layer_types` where the config has them, else those layers that `pattern` names."""
    window = config.get("sliding_window")
    if not window or not config.get("use_sliding_window", True):
        return ()
    window = _size(config, "sliding_window", path)
    types = config.get("layer_types")
    if types:
        found = tuple(window if each == "sliding_attention" else 0 for each in types)
    else:
        found = tuple(window if pattern(layer) else 0 for layer in range(layers))
    return found if any(found) else ()


def _llama(config: Config, path: Path) -> ModelShape:
    if "LlamaForCausalLMEagle3" in (config.get("architectures") or ()):
        return _decoder(config, path, fused_input=3, draft_vocab=_size(config, "draft_vocab_size", path, 1),
                        layer_norms=3)
    return _decoder(config, path)


def _qwen2(config: Config, path: Path) -> ModelShape:
    """Biases on q, k and v; the window is off unless use_sliding_window."""
    quiet = {"use_sliding_window": False, **config}
    return _decoder(quiet, path, qkv_bias=True, output_bias=False)


def _qwen3(config: Config, path: Path) -> ModelShape:
    return _decoder({"use_sliding_window": False, **config}, path, qk_norm=True)


def _gemma(config: Config, path: Path) -> ModelShape:
    return _decoder({"tie_word_embeddings": True, **config}, path)


def _gemma2(config: Config, path: Path) -> ModelShape:
    """Every other layer slides, the first one does; four norms a layer."""
    layers = _size(config, "num_hidden_layers", path)
    return _decoder({"tie_word_embeddings": True, **config}, path, layer_norms=4,
                    windows=_windows(config, layers, path, lambda layer: layer % 2 == 0))


def _gemma3(config: Config, path: Path) -> ModelShape:
    """One layer in `sliding_window_pattern` (6) attends to everything; four norms a layer, norms on q and k."""
    layers = _size(config, "num_hidden_layers", path)
    every = _size(config, "sliding_window_pattern", path, 6)
    defaults = {"tie_word_embeddings": True, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                "vocab_size": 262_208, "max_position_embeddings": 131_072}
    return _decoder({**defaults, **config}, path, layer_norms=4, qk_norm=True,
                    windows=_windows(config, layers, path, lambda layer: (layer + 1) % every != 0))


def _mixtral(config: Config, path: Path) -> ModelShape:
    return _decoder(config, path, experts=Experts(
        _size(config, "num_local_experts", path), _size(config, "num_experts_per_tok", path),
        _size(config, "intermediate_size", path)))


def _qwen_moe(config: Config, path: Path, **special: Any) -> ModelShape:
    """Qwen2-MoE and Qwen3-MoE: every `decoder_sparse_step`-th layer has experts, but for `mlp_only_layers`."""
    layers, step = _size(config, "num_hidden_layers", path), _size(config, "decoder_sparse_step", path, 1)
    plain = set(config.get("mlp_only_layers") or ())
    dense = sum(1 for layer in range(layers) if layer in plain or (layer + 1) % step)
    shared = config.get("shared_expert_intermediate_size") or 0
    experts = Experts(_size(config, "num_experts", path), _size(config, "num_experts_per_tok", path),
                      _size(config, "moe_intermediate_size", path), shared, bool(shared), dense)
    return _decoder({"use_sliding_window": False, **config}, path, experts=experts, **special)


def _qwen2_moe(config: Config, path: Path) -> ModelShape:
    return _qwen_moe(config, path, qkv_bias=True, output_bias=False)


def _qwen3_moe(config: Config, path: Path) -> ModelShape:
    return _qwen_moe(config, path, qk_norm=True)


def _deepseek(config: Config, path: Path) -> ModelShape:
    """DeepSeek-V2, V3 and what is built like them: latent attention, shared experts, the first layers dense."""
    latent = Latent(int(config.get("q_lora_rank") or 0), _size(config, "kv_lora_rank", path),
                    _size(config, "qk_nope_head_dim", path), _size(config, "qk_rope_head_dim", path),
                    _size(config, "v_head_dim", path))
    return _decoder(config, path, latent=latent, head_dim=latent.nope_dim + latent.rope_dim,
                    experts=_deepseek_experts(config, path, config.get("model_type") != "deepseek_v2"))


def _deepseek_experts(config: Config, path: Path, corrected: bool) -> Experts:
    width = _size(config, "moe_intermediate_size", path)
    return Experts(_size(config, "n_routed_experts", path), _size(config, "num_experts_per_tok", path), width,
                   int(config.get("n_shared_experts") or 0) * width, False,
                   int(config.get("first_k_dense_replace") or 0), False, corrected)


def _glm4_moe(config: Config, path: Path) -> ModelShape:
    """GLM-4.5: grouped-query attention with biases on q, k and v, experts as in DeepSeek-V3."""
    return _decoder(config, path, experts=_deepseek_experts(config, path, True),
                    qk_norm=bool(config.get("use_qk_norm", False)), output_bias=False)


def _gpt_oss(config: Config, path: Path) -> ModelShape:
    """gpt-oss: biases everywhere, a sink per head, every other layer slides, the first one does."""
    layers, width = _size(config, "num_hidden_layers", path), _size(config, "intermediate_size", path)
    experts = Experts(_size(config, "num_local_experts", path), _size(config, "num_experts_per_tok", path), width,
                      biases=True)
    return _decoder(config, path, experts=experts, qkv_bias=True, output_bias=True, attention_sinks=True,
                    windows=_windows(config, layers, path, lambda layer: layer % 2 == 0))


def _llama4(config: Config, path: Path) -> ModelShape:
    """Llama 4: each token uses one routed and the shared expert; three of four layers attend within chunks."""
    layers, width = _size(config, "num_hidden_layers", path), _size(config, "intermediate_size", path)
    step = _size(config, "interleave_moe_layer_step", path, 1)
    with_experts = config.get("moe_layers") or [layer for layer in range(layers) if (layer + 1) % step == 0]
    rope = config.get("no_rope_layers") or [int((layer + 1) % 4 != 0) for layer in range(layers)]
    chunk = _size(config, "attention_chunk_size", path, 8192)
    experts = Experts(_size(config, "num_local_experts", path), _size(config, "num_experts_per_tok", path, 1), width,
                      width, dense_layers=layers - len(with_experts))
    return _decoder(config, path, experts=experts, intermediate=_size(config, "intermediate_size_mlp", path, width),
                    windows=tuple(chunk if each else 0 for each in rope), chunked=True)


def _granite_hybrid(config: Config, path: Path) -> ModelShape:
    """Granite 4: with attention in every layer (micro) a Llama; state-space layers are refused."""
    types = config.get("layer_types") or config.get("layers_block_type") or ["mamba"]
    if set(types) != {"attention"}:
        raise ConfigError(f"{path}: model_type 'granitemoehybrid' with state-space (mamba) layers: not modelled")
    plain = {**config, "layer_types": None, "intermediate_size": config.get("shared_intermediate_size")
             or config.get("intermediate_size")}
    if config.get("num_local_experts"):
        raise ConfigError(f"{path}: model_type 'granitemoehybrid' with experts: not modelled")
    return _decoder({"tie_word_embeddings": True, **plain}, path)


def _cohere(config: Config, path: Path) -> ModelShape:
    """Command R: attention and MLP side by side behind one norm; tied embeddings."""
    if config.get("use_qk_norm"):
        raise ConfigError(f"{path}: model_type 'cohere' with norms on q and k: not modelled")
    return _decoder({"tie_word_embeddings": True, **config}, path, layer_norms=1)


def _opt(config: Config, path: Path) -> ModelShape:
    """OPT: LayerNorm and biases everywhere, learned positions with two rows more than positions."""
    heads, hidden = _size(config, "num_attention_heads", path), _size(config, "hidden_size", path)
    positions = _size(config, "max_position_embeddings", path)
    projected = _size(config, "word_embed_proj_dim", path, hidden) != hidden
    if projected or not config.get("do_layer_norm_before", True):
        raise ConfigError(f"{path}: OPT with projected embeddings or norms after the layer (opt-350m) "
                          "is not modelled")
    return ModelShape(
        name="", layers=_size(config, "num_hidden_layers", path), hidden=hidden,
        intermediate=_size(config, "ffn_dim", path), heads=heads, kv_heads=heads, head_dim=hidden // heads,
        vocab=_size(config, "vocab_size", path), max_positions=positions, gated_mlp=False,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)), qkv_bias=True, output_bias=True,
        mlp_bias=True, norm_bias=True, learned_positions=positions + 2)


def _positions(config: Config, path: Path) -> int:
    """[tokens] the model takes, with its rope scaling as vLLM counts it (vllm/config/model.py,
    _get_and_verify_max_len): yarn stretches the positions before scaling, linear and dynamic those of the config;
    llama3, longrope and su have them in max_position_embeddings already, as has Gemma 3."""
    positions, scaling = _size(config, "max_position_embeddings", path), _scaling(config)
    if str(config.get("model_type", "")).startswith("gemma3"):
        return positions
    return _stretched(positions, scaling, path)


def _scaling(config: Config) -> Config:
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    return scaling if isinstance(scaling, Mapping) else {}


def _stretched(positions: int, scaling: Config, path: Path) -> int:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("yarn", "linear", "dynamic"):
        return positions
    factor = scaling.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 4096:
        raise ConfigError(f"{path}: rope_scaling.factor must be a number from 1 to 4096, got {factor!r}")
    if kind == "yarn":
        positions = _size(scaling, "original_max_position_embeddings", path, positions)
    return int(positions * factor)


def _rotary(config: Config, path: Path, width: int) -> int:
    """[elements] of the tables of rotary positions, a row for each (vLLM 0.24, model_executor/layers/rotary_embedding):
    as many as scaling stretches them to; Gemma 3 has one more, not stretched, for its windows."""
    positions = _size(config, "max_position_embeddings", path)
    rows = _stretched(positions, _scaling(config), path)
    if str(config.get("model_type", "")).startswith("gemma3"):
        rows += positions
    share = config.get("partial_rotary_factor", 1.0)
    return rows * (int(width * share) if isinstance(share, int | float) else width)


def _size(config: Config, key: str, path: Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{path}: {key} must be a whole number >= 1, got {value!r}")
    return value


FAMILIES: Final[Mapping[str, Callable[[Config, Path], ModelShape]]] = {
    "llama": _llama, "mistral": _llama, "mistral3": _llama, "phi3": _llama, "granite": _llama, "smollm3": _llama,
    "qwen2": _qwen2, "qwen2_vl": _qwen2, "qwen2_5_vl": _qwen2, "qwen2_5_vl_text": _qwen2, "qwen3": _qwen3,
    "qwen3_vl": _qwen3, "qwen3_vl_text": _qwen3, "gemma": _gemma, "gemma2": _gemma2, "gemma3": _gemma3,
    "gemma3_text": _gemma3, "mixtral": _mixtral, "qwen2_moe": _qwen2_moe, "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss, "llama4": _llama4, "llama4_text": _llama4, "granitemoehybrid": _granite_hybrid,
    "cohere": _cohere, "opt": _opt,
}
"""model_type -> reader."""
CLASSES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
}
"""model_type -> class in Hugging Face Transformers, for the types whose class an engine profile may name."""
