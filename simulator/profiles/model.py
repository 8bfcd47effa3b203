"""Transformer shapes from a Hugging Face config.json: parameters, weight and KV bytes, GEMM shapes, FLOPs.

Covered: dense decoders of the Llama kind (llama, mistral, qwen2, qwen3) and OPT. Mixture of experts and
sliding-window attention change bytes per step and KV per token, so they are refused, not approximated.
Tensor parallelism follows Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053, section 3): qkv and the first
MLP matrix are split by columns, output projection and second MLP matrix by rows, embedding and head by
vocabulary; norms are copied. KV heads are copied when there are fewer of them than GPUs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hwprofiles import MODEL_DIR
from simulator.errors import ConfigError, UnknownNameError

WEIGHT_BYTES: Final[Mapping[str, float]] = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp4": 0.5625,   # 4 bits and one fp8 scale per 16 weights (NVFP4)
    "int4": 0.515625,  # 4 bits and one fp16 scale per 128 weights (AWQ and GPTQ, group size 128)
}
"""[bytes per weight] of the per-layer matrices; embedding, head, norms and biases stay in 16 bits."""
KV_BYTES: Final[Mapping[str, float]] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
ACTIVATION_BYTES: Final = 2

_DTYPE_ALIASES: Final = {"bfloat16": "bf16", "auto": "bf16", "float16": "fp16", "half": "fp16",
                         "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "nvfp4": "fp4", "awq": "int4", "gptq": "int4"}
_GATED: Final = ("llama", "mistral", "qwen2", "qwen3")
SUPPORTED_TYPES: Final = (*_GATED, "opt")


class Gemm(NamedTuple):
    """One matrix product per layer: (m, k) x (k, n), m being the batched tokens; sizes are per GPU."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense decoder, whole model. `learned_positions` counts rows, 0 with rotary embedding."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    gated_mlp: bool
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    qk_norm: bool = False
    learned_positions: int = 0

    def check_tp(self, tp: int) -> None:
        """Raise ConfigError where heads or the MLP cannot be split evenly over `tp` GPUs."""
        if tp < 1:
            raise ConfigError(f"tensor_parallel must be >= 1, got {tp}")
        fits_kv = self.kv_heads % tp == 0 or tp % self.kv_heads == 0
        if self.heads % tp or self.intermediate % tp or not fits_kv:
            raise ConfigError(f"{self.name}: tensor_parallel {tp} does not divide {self.heads} heads, "
                              f"{self.kv_heads} KV heads and MLP width {self.intermediate}")

    def kv_heads_per_gpu(self, tp: int = 1) -> int:
        """KV heads held by one GPU: at least one, so they are copied when tp > kv_heads."""
        self.check_tp(tp)
        return max(1, self.kv_heads // tp)

    def gemm_shapes(self, tp: int = 1) -> list[Gemm]:
        """The products of one layer on one GPU, in order of execution; the head is `head_shape`."""
        self.check_tp(tp)
        q_width = self.heads // tp * self.head_dim
        kv_width = self.kv_heads_per_gpu(tp) * self.head_dim
        width = self.intermediate // tp
        first = Gemm("gate_up", 2 * width, self.hidden) if self.gated_mlp else Gemm("up", width, self.hidden)
        return [Gemm("qkv", q_width + 2 * kv_width, self.hidden), Gemm("o", self.hidden, q_width),
                first, Gemm("down", self.hidden, width)]

    def head_shape(self, tp: int = 1) -> Gemm:
        """The vocabulary projection on one GPU; it runs for sampled rows only, not for every prompt token."""
        self.check_tp(tp)
        return Gemm("lm_head", -(-self.vocab // tp), self.hidden)

    def layer_weights(self, tp: int = 1) -> int:
        """Weights in the matrices of all layers, on one GPU: what quantisation shrinks."""
        return self.layers * sum(g.n * g.k for g in self.gemm_shapes(tp))

    def other_weights(self, tp: int = 1) -> int:
        """Weights besides the layer matrices on one GPU: embedding, head, positions, norms, biases."""
        vocab_rows = self.head_shape(tp).n * (1 if self.tied_embeddings else 2)
        rows = vocab_rows + self.learned_positions
        return rows * self.hidden + self._norms() + self.layers * self._biases(tp)

    def _norms(self) -> int:
        per_norm = self.hidden * (2 if self.norm_bias else 1)
        qk = 2 * self.head_dim if self.qk_norm else 0
        return (2 * self.layers + 1) * per_norm + self.layers * qk

    def _biases(self, tp: int) -> int:
        """Biases of one layer on one GPU; those of row-split matrices are copied."""
        qkv, output, first, down = self.gemm_shapes(tp)
        return (self.qkv_bias * qkv.n + self.output_bias * output.n + self.mlp_bias * (first.n + down.n))

    @property
    def parameters(self) -> int:
        """All weights, embedding and head included (a tied head counted once)."""
        return self.layer_weights() + self.other_weights()

    def weight_bytes(self, dtype: str = "bf16", tp: int = 1) -> int:
        """[bytes] of weights on one GPU of `tp`."""
        size = WEIGHT_BYTES[dtype_name(dtype, WEIGHT_BYTES)]
        return round(self.layer_weights(tp) * size) + self.other_weights(tp) * ACTIVATION_BYTES

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1) -> int:
        """[bytes/token] of keys and values on one GPU: 2 x layers x KV heads on it x head size x element."""
        size = KV_BYTES[dtype_name(dtype, KV_BYTES)]
        return round(2 * self.layers * self.kv_heads_per_gpu(tp) * self.head_dim * size)

    def flops_per_token(self, tp: int = 1) -> int:
        """[FLOP/token] on one GPU in the layers' products: two per weight; head and attention are apart."""
        return 2 * self.layer_weights(tp)

    def attention_flops_per_pair(self, tp: int = 1) -> int:
        """[FLOP per query-key pair] on one GPU, all layers: QK^T and PV, 2 x 2 x heads x head size each."""
        self.check_tp(tp)
        return 4 * (self.heads // tp) * self.head_dim * self.layers


def dtype_name(dtype: str, accepted: Mapping[str, float]) -> str:
    """Canonical name of a number format (bfloat16 -> bf16). Raises UnknownNameError."""
    name = _DTYPE_ALIASES.get(dtype.lower(), dtype.lower())
    if name not in accepted:
        raise UnknownNameError("dtype", dtype, accepted)
    return name


def list_models() -> tuple[str, ...]:
    """Names of the shipped models."""
    return tuple(sorted(path.stem for path in MODEL_DIR.glob("*.json")))


def load_model(name_or_path: str | Path) -> ModelShape:
    """A shipped name (`llama-3.1-8b`, also `meta-llama/Llama-3.1-8B-Instruct`), a config.json or its folder.

    Raises UnknownNameError for a name that is neither, ConfigError for a config that cannot be used.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        if path.suffix == ".json":
            raise ConfigError(f"{path}: no such model config file")
        path = _shipped(str(name_or_path))
    return parse_model(_read(path), path)


def _shipped(name: str) -> Path:
    known = list_models()
    key = name.lower().rsplit("/", 1)[-1].removeprefix("meta-").removesuffix("-instruct")
    if key not in known:
        raise UnknownNameError("model", name, known)
    return MODEL_DIR / f"{key}.json"


def _read(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a readable config.json: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a config.json is a JSON object, got {type(config).__name__}")
    return config


def parse_model(config: Mapping[str, object], path: Path) -> ModelShape:
    """Shape from the content of a config.json; `path` gives name and messages. Raises ConfigError."""
    kind = config.get("model_type")
    if kind not in SUPPORTED_TYPES:
        raise ConfigError(f"{path}: model_type must be one of {', '.join(SUPPORTED_TYPES)}, got {kind!r} "
                          "(mixture of experts, latent and sliding-window attention are not modelled)")
    _refuse_sliding_window(config, path)
    shape = _opt(config, path) if kind == "opt" else _llama(config, path, str(kind))
    shape.check_tp(1)
    return shape


def _name(path: Path) -> str:
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.name.removesuffix(".json").removesuffix(".config")


def _llama(config: Mapping[str, object], path: Path, kind: str) -> ModelShape:
    heads, hidden = _size(config, "num_attention_heads", path), _size(config, "hidden_size", path)
    bias = bool(config.get("attention_bias", False))
    return ModelShape(
        name=_name(path), layers=_size(config, "num_hidden_layers", path), hidden=hidden,
        intermediate=_size(config, "intermediate_size", path), heads=heads,
        kv_heads=_size(config, "num_key_value_heads", path, heads),
        head_dim=_size(config, "head_dim", path, hidden // heads), vocab=_size(config, "vocab_size", path),
        max_positions=_positions(config, path), gated_mlp=True,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)), qkv_bias=bias or kind == "qwen2",
        output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)), qk_norm=kind == "qwen3")


def _opt(config: Mapping[str, object], path: Path) -> ModelShape:
    """OPT: LayerNorm and biases everywhere, learned positions with two rows more than positions."""
    heads, hidden = _size(config, "num_attention_heads", path), _size(config, "hidden_size", path)
    positions = _size(config, "max_position_embeddings", path)
    projected = _size(config, "word_embed_proj_dim", path, hidden) != hidden
    if projected or not config.get("do_layer_norm_before", True):
        raise ConfigError(f"{path}: OPT with projected embeddings or norms after the layer (opt-350m) "
                          "is not modelled")
    return ModelShape(
        name=_name(path), layers=_size(config, "num_hidden_layers", path), hidden=hidden,
        intermediate=_size(config, "ffn_dim", path), heads=heads, kv_heads=heads, head_dim=hidden // heads,
        vocab=_size(config, "vocab_size", path), max_positions=positions, gated_mlp=False,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)), qkv_bias=True, output_bias=True,
        mlp_bias=True, norm_bias=True, learned_positions=positions + 2)


def _positions(config: Mapping[str, object], path: Path) -> int:
    """[tokens] the model takes, with its rope scaling as vLLM counts it (vllm/config/model.py,
    _get_and_verify_max_len): yarn stretches the positions before scaling, linear and dynamic those of the config;
    llama3, longrope and su have them in max_position_embeddings already."""
    positions = _size(config, "max_position_embeddings", path)
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return positions
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("yarn", "linear", "dynamic"):
        return positions
    factor = scaling.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 4096:
        raise ConfigError(f"{path}: rope_scaling.factor must be a number from 1 to 4096, got {factor!r}")
    if kind == "yarn":
        positions = _size(scaling, "original_max_position_embeddings", path, positions)
    return int(positions * factor)


def _size(config: Mapping[str, object], key: str, path: Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{path}: {key} must be a whole number >= 1, got {value!r}")
    return value


def _refuse_sliding_window(config: Mapping[str, object], path: Path) -> None:
    window = config.get("sliding_window")
    if not isinstance(window, int) or not config.get("use_sliding_window", True):
        return
    positions = _size(config, "max_position_embeddings", path)
    if window < positions:
        raise ConfigError(f"{path}: sliding_window {window} below max_position_embeddings {positions} is not "
                          "modelled; set it to null to have full attention simulated")
