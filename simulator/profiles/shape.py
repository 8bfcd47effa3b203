"""Transformer shapes: parameters, weight and KV bytes, GEMM shapes, FLOPs.

Covered: decoders with grouped-query or latent attention, full, sliding-window or chunked, with a dense MLP or a
mixture of experts (profiles.config_json lists the model types). Tensor parallelism follows Megatron-LM
(Shoeybi et al. 2019, arXiv:1909.08053, section 3): qkv and the first MLP matrix are split by columns, output
projection and second MLP matrix by rows, embedding and head by vocabulary; norms and routers are copied. KV heads
are copied when there are fewer of them than GPUs. Experts are split like an MLP or, with expert parallelism, dealt
out whole: the bytes a GPU are the same.
"""

from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.profiles.quantisation import (
    KV_BYTES,
    SIXTEEN_BIT,
    Module,
    WeightFormat,
    dtype_name,
    loaded_format,
)


class Gemm(NamedTuple):
    """One matrix product per layer: (m, k) x (k, n), m being the batched tokens; sizes are per GPU."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): one compressed row a token."""

    query_rank: int  # 0: queries are not compressed
    kv_rank: int
    nope_dim: int    # of a head, without position
    rope_dim: int    # of a head, with position; its key is shared by all heads
    value_dim: int

    @property
    def row(self) -> int:
        """[elements] cached per token and layer."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of the MLP."""

    routed: int            # experts of a layer
    active: int            # of them used by a token
    width: int             # MLP width of one
    shared_width: int = 0  # MLP width of the experts every token uses, together
    shared_gate: bool = False  # their output is weighted by a learned gate (Qwen2-MoE)
    dense_layers: int = 0  # layers with a plain MLP instead
    biases: bool = False   # expert matrices and router have biases (gpt-oss)
    router_bias: bool = False  # the router corrects its scores (DeepSeek-V3)


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder, whole model. `learned_positions` counts rows, 0 with rotary embedding."""

    name: str
    layers: int
    hidden: int
    intermediate: int      # of a dense MLP; with experts only in `experts.dense_layers` layers
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
    layer_norms: int = 2           # norms of a layer on the hidden state
    attention_sinks: bool = False  # a learned logit per head (gpt-oss)
    windows: tuple[int, ...] = ()  # [tokens] seen by attention, per layer, 0: all of them; (): all in every layer
    chunked: bool = False          # windows are chunks that start anew (Llama 4), not sliding
    latent: Latent | None = None
    experts: Experts | None = None
    weights: WeightFormat = SIXTEEN_BIT   # as the checkpoint stores them
    model_type: str = ""           # of its config.json
    architectures: tuple[str, ...] = ()    # classes that its config.json names
    encoder_parameters: int = 0    # vision or audio encoder, loaded in 16 bits on every GPU's share
    not_counted: str = ""          # what the checkpoint holds besides, unknown in size
    fused_input: int = 0           # [hidden states] an EAGLE-3 draft takes from its target, 0: no draft
    draft_vocab: int = 0           # of its head, where smaller than vocab
    rotary: int = 0                # [elements] tables of cosines and sines of rotary positions

    @property
    def window(self) -> int:
        """[tokens] shortest window of any layer, 0: full attention in all of them."""
        return min((each for each in self.windows if each), default=0)

    def full_layers(self, context: int) -> int:
        """Layers that attend to every one of `context` tokens."""
        return sum(1 for each in self.windows if not each or each >= context) if self.windows else self.layers

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.experts.dense_layers if self.experts else 0

    def check_tp(self, tp: int) -> None:
        """Raise ConfigError where heads, MLP or experts cannot be split evenly over `tp` GPUs."""
        if tp < 1:
            raise ConfigError(f"tensor_parallel must be >= 1, got {tp}")
        fits_kv = self.latent is not None or self.kv_heads % tp == 0 or tp % self.kv_heads == 0
        widths = [self.intermediate] if self.expert_layers < self.layers else []
        widths += [self.experts.width, self.experts.shared_width] if self.experts else []
        if self.heads % tp or any(width % tp for width in widths) or not fits_kv:
            width = " and ".join(str(each) for each in widths if each)
            raise ConfigError(f"{self.name}: tensor_parallel {tp} does not divide {self.heads} heads, "
                              f"{self.kv_heads} KV heads and MLP width {width}")

    def kv_heads_per_gpu(self, tp: int = 1) -> int:
        """KV heads held by one GPU: at least one, so they are copied when tp > kv_heads."""
        self.check_tp(tp)
        return max(1, self.kv_heads // tp)

    def attention_gemms(self, tp: int = 1) -> list[Gemm]:
        """Products around attention in one layer on one GPU, in order of execution."""
        self.check_tp(tp)
        heads, latent = self.heads // tp, self.latent
        if latent is None:
            q_width, kv_width = heads * self.head_dim, self.kv_heads_per_gpu(tp) * self.head_dim
            # an EAGLE-3 draft's attention reads the token's embedding beside the hidden state
            return [Gemm("qkv", q_width + 2 * kv_width, self.hidden * (2 if self.fused_input else 1)),
                    Gemm("o", self.hidden, q_width)]
        query = heads * (latent.nope_dim + latent.rope_dim)
        down = Gemm("qkv_a", latent.query_rank + latent.row, self.hidden)  # copied on every GPU
        q = Gemm("q_b", query, latent.query_rank) if latent.query_rank else Gemm("q", query, self.hidden)
        return [down, q, Gemm("kv_b", heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
                Gemm("o", self.hidden, heads * latent.value_dim)]

    def mlp_gemms(self, width: int, tp: int = 1) -> list[Gemm]:
        """Products of an MLP, expert or group of shared experts of `width`, split over `tp` GPUs."""
        part = width // tp
        first = Gemm("gate_up", 2 * part, self.hidden) if self.gated_mlp else Gemm("up", part, self.hidden)
        return [first, Gemm("down", self.hidden, part)]

    def gemm_shapes(self, tp: int = 1) -> list[Gemm]:
        """The products of one layer with a dense MLP on one GPU, in order; the head is `head_shape`."""
        return self.attention_gemms(tp) + self.mlp_gemms(self.intermediate, tp)

    def head_shape(self, tp: int = 1) -> Gemm:
        """The vocabulary projection on one GPU; it runs for sampled rows only, not for every prompt token."""
        self.check_tp(tp)
        return Gemm("lm_head", -(-(self.draft_vocab or self.vocab) // tp), self.hidden)

    def part_weights(self, tp: int = 1) -> dict[str, int]:
        """Weights on one GPU by part: attention, mlp, experts, shared, router, other (embedding, head, norms...)."""
        experts = self.experts
        routed, shared, router = 0, 0, 0
        if experts:
            routed = experts.routed * _weights(self.mlp_gemms(experts.width, tp))
            shared = _weights(self.mlp_gemms(experts.shared_width, tp)) if experts.shared_width else 0
            router = experts.routed * self.hidden + (self.hidden if experts.shared_gate else 0)
        dense = self.layers - self.expert_layers
        return {
            "attention": self.layers * _weights(self.attention_gemms(tp)),
            "mlp": dense * _weights(self.mlp_gemms(self.intermediate, tp)) if dense else 0,
            "experts": self.expert_layers * routed, "shared": self.expert_layers * shared,
            "router": self.expert_layers * router,
            "other": self.other_weights(tp),
        }

    def layer_weights(self, tp: int = 1) -> int:
        """Weights in the matrices of all layers, on one GPU: what quantisation may shrink, and the routers."""
        return sum(count for part, count in self.part_weights(tp).items() if part != "other")

    def other_weights(self, tp: int = 1) -> int:
        """Weights besides the layer matrices on one GPU: embedding, head, positions, norms, biases, encoder."""
        head = self.head_shape(tp).n
        embedding = 0 if self.fused_input else -(-self.vocab // tp)  # a draft uses its target's
        rows = embedding + (0 if self.tied_embeddings else head) + self.learned_positions
        fused = self.fused_input * self.hidden * self.hidden
        return (rows * self.hidden + self._norms() + self.layers * self._biases(tp) + fused
                + self.expert_layers * self._expert_biases(tp) + -(-self.encoder_parameters // tp))

    def _norms(self) -> int:
        per_norm = self.hidden * (2 if self.norm_bias else 1)
        small = 2 * self.head_dim if self.qk_norm else 0
        if self.latent:
            small += self.latent.query_rank + self.latent.kv_rank
        extra = 1 if self.fused_input else 0
        return (self.layer_norms * self.layers + 1 + extra) * per_norm + self.layers * small

    def _biases(self, tp: int) -> int:
        """Biases and attention sinks of one layer on one GPU; biases of row-split matrices are copied."""
        qkv = self.attention_gemms(tp)[0].n
        mlp = sum(gemm.n for gemm in self.mlp_gemms(self.intermediate, tp)) if self.mlp_bias else 0
        sinks = self.heads // tp if self.attention_sinks else 0
        return self.qkv_bias * qkv + self.output_bias * self.hidden + mlp + sinks

    def _expert_biases(self, tp: int) -> int:
        """Biases of one layer's experts and router on one GPU."""
        experts = self.experts
        if experts is None:
            return 0
        each = sum(gemm.n for gemm in self.mlp_gemms(experts.width, tp)) + 1 if experts.biases else 0
        return experts.routed * (each + experts.router_bias)

    def modules(self) -> list[Module]:
        """The matrices of the layers under their Hugging Face names, for lists of ignored modules."""
        found = []
        for layer in range(self.layers):
            start = f"model.layers.{layer}."
            found += [Module(f"{start}self_attn.{name}", "attention", weights)
                      for name, weights in self._attention_modules()]
            experts = self.experts if layer >= self.layers - self.expert_layers else None
            if experts is None:
                found += _mlp_modules(f"{start}mlp", "mlp", _weights(self.mlp_gemms(self.intermediate)))
                continue
            each = experts.routed * _weights(self.mlp_gemms(experts.width))
            found += _mlp_modules(f"{start}mlp.experts.0", "experts", each)
            if experts.shared_width:
                shared = _weights(self.mlp_gemms(experts.shared_width))
                found += _mlp_modules(f"{start}mlp.shared_experts", "shared", shared)
        return found

    def _attention_modules(self) -> list[tuple[str, int]]:
        gemms = {gemm.name: gemm.n * gemm.k for gemm in self.attention_gemms()}
        if self.latent is None:
            kv = self.kv_heads * self.head_dim * self.attention_gemms()[0].k
            return [("q_proj", gemms["qkv"] - 2 * kv), ("k_proj", kv), ("v_proj", kv), ("o_proj", gemms["o"])]
        row = self.latent.row * self.hidden
        q = [("q_a_proj", gemms["qkv_a"] - row), ("q_b_proj", gemms["q_b"])] if self.latent.query_rank else \
            [("q_proj", gemms["q"])]
        return [*q, ("kv_a_proj_with_mqa", row), ("kv_b_proj", gemms["kv_b"]), ("o_proj", gemms["o"])]

    @property
    def parameters(self) -> int:
        """All weights, embedding and head included (a tied head counted once)."""
        return sum(self.part_weights().values())

    def weight_format(self, dtype: str = "auto") -> WeightFormat:
        """Format in GPU memory when loaded as `dtype`. Raises ConfigError against the checkpoint's own."""
        return loaded_format(dtype, self.weights, self.name)

    def weight_bytes(self, dtype: str = "bf16", tp: int = 1) -> int:
        """[bytes] of weights on one GPU of `tp`."""
        weights = self.weight_format(dtype)
        return sum(round(count * weights.part_bytes(part)) for part, count in self.part_weights(tp).items())

    def kv_layer_bytes(self, dtype: str = "bf16", tp: int = 1) -> int:
        """[bytes/token] of one layer on one GPU: keys and values of its KV heads, or one latent row on each GPU."""
        size = KV_BYTES[dtype_name(dtype, KV_BYTES)]
        if self.latent:
            return round(self.latent.row * size)
        return round(2 * self.kv_heads_per_gpu(tp) * self.head_dim * size)

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1, context: int = 0) -> int:
        """[bytes/token] of keys and values on one GPU, all layers; beyond `context` tokens where it is given:
        what one more token costs once the windows shorter than that are full."""
        layers = self.full_layers(context + 1) if context else self.layers
        return layers * self.kv_layer_bytes(dtype, tp)

    def flops_per_token(self, tp: int = 1) -> int:
        """[FLOP/token] on one GPU in the layers' products: two per weight that a token meets; head and attention
        are apart."""
        parts = self.part_weights(tp)
        if self.experts:
            parts["experts"] = parts["experts"] // self.experts.routed * self.experts.active
        return 2 * sum(count for part, count in parts.items() if part != "other")

    def attention_flops_per_pair(self, tp: int = 1) -> int:
        """[FLOP per query-key pair] on one GPU, all layers: QK^T and PV, 2 x 2 x heads x head size each."""
        self.check_tp(tp)
        if self.latent:
            size = self.latent.nope_dim + self.latent.rope_dim + self.latent.value_dim
            return 2 * (self.heads // tp) * size * self.layers
        return 4 * (self.heads // tp) * self.head_dim * self.layers

    def beyond_step_costs(self, max_model_len: int) -> list[str]:
        """What this model has, by name, that step costs and memory do not cover, up to a request length."""
        sizes = sorted({each for each in self.windows if 0 < each < max_model_len})
        return [f"windowed attention of {' and '.join(map(str, sizes))} tokens"] if len(sizes) > 1 else []

    def beyond_roofline(self, max_model_len: int) -> list[str]:
        """What this model has, by name, that the roofline of a dense decoder lacks, up to a request length."""
        kind = "chunked" if self.chunked else "sliding-window"
        return [name for name, there in (
            (f"a mixture of {self.experts.routed if self.experts else 0} experts", self.experts is not None),
            ("multi-head latent attention", self.latent is not None),
            (f"{kind} attention of {self.window} tokens", 0 < self.window < max_model_len),
            (f"{self.weights.method} weights with parts in 16 bits", any(share > 0 for _, share in self.weights.kept)),
        ) if there]


def _mlp_modules(start: str, part: str, weights: int) -> list[Module]:
    names = ("gate_proj", "up_proj", "down_proj")
    return [Module(f"{start}.{name}", part, weights // len(names)) for name in names]


def _weights(gemms: list[Gemm]) -> int:
    return sum(gemm.n * gemm.k for gemm in gemms)

