"""KV capacity worked by hand, and what does not fit. Block counts of real engines: tests/calibration/test_kv_counts."""

import re

import pytest

from calibration.fit import MEASUREMENTS
from simulator.errors import CapacityError, ConfigError
from simulator.profiles.capacity import KvCapacity, kv_capacity
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model
from simulator.profiles.reserve import beside_weights


def capacity(gpu: str, model: str, tp: int = 1, **options: object) -> KvCapacity:
    return kv_capacity(load_gpu(gpu), load_engine("vllm-0.24"), load_model(model), tp, **options)  # type: ignore[arg-type]


def test_parts_add_up_and_blocks_fill_what_is_left() -> None:
    found = capacity("h100-sxm", "llama-3.1-8b")
    assert sum(size for name, size in found.rows()[:-1]) == found.kv_bytes
    assert found.block_bytes == 16 * 131072  # 2 x 32 layers x 8 heads x 128 x 2 bytes = 131,072 bytes a token
    assert 0 <= found.kv_bytes - found.num_gpu_blocks * found.block_bytes < found.block_bytes
    assert "131,072 bytes of KV per token" in found.text()
    assert found.weight_bytes == 2 * 8_030_261_248 + 131_072 * 128 * 2  # and cosines and sines of its positions


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b"])
def test_the_equation_printed_is_true(model: str) -> None:
    """A x B = C bytes a block; blocks of that size fill the memory; of models with windows those of one group."""
    found = capacity("h200-sxm", model)
    a, b, c, blocks = (int(each.replace(",", "")) for each in re.match(
        r"([\d,]+) bytes of KV per token.* x ([\d,]+) tokens = ([\d,]+) bytes per block; ([\d,]+) blocks fit",
        found.equation()).groups())  # type: ignore[union-attr]
    assert a * b == c
    assert 0 <= found.kv_bytes - blocks * c < c
    assert ("of one of" in found.equation()) == (model != "llama-3.1-8b")


def test_capacity_is_not_multiplied_by_tensor_parallelism() -> None:
    """Two GPUs hold half the weights and half of every block each: more blocks than one, but below
    2 x (usable / block)."""
    one, two = capacity("h200-sxm", "llama-3.1-8b", 1), capacity("h200-sxm", "llama-3.1-8b", 2)
    assert two.block_bytes == one.block_bytes // 2
    assert 2 * one.num_gpu_blocks < two.num_gpu_blocks < 2 * one.usable_bytes // one.block_bytes


def test_kv_heads_are_copied_beyond_their_number() -> None:
    """16 GPUs, 8 KV heads: a block is as large as on 8."""
    shape = load_model("llama-3.1-70b")
    assert shape.kv_bytes_per_token("bf16", 16) == shape.kv_bytes_per_token("bf16", 8)


def test_eight_bit_kv_doubles_the_blocks() -> None:
    half = capacity("h100-sxm", "llama-3.1-8b", kv_dtype="fp8").num_gpu_blocks
    assert half // 2 == capacity("h100-sxm", "llama-3.1-8b").num_gpu_blocks


def test_weights_larger_than_the_gpu_are_refused_with_a_way_out() -> None:
    with pytest.raises(
        CapacityError, match=r"llama-3.1-70b in bf16 on 1 x H100-SXM5-80GB: .* needs at least 2 GPUs"
    ):
        capacity("h100-sxm", "llama-3.1-70b")
    assert capacity("h100-sxm", "llama-3.1-70b", 2).num_gpu_blocks > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be >= 1, got 0"),
        ({"gpu_memory_utilization": 1.5}, r"gpu_memory_utilization must be in \(0, 1\], got 1.5"),
        ({"block_size": 0}, "block_size must be >= 1, got 0"),
    ],
)
def test_bad_limits_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        capacity("h100-sxm", "llama-3.1-8b", **options)


def test_defaults_are_the_servers_own() -> None:
    """vLLM 0.24, EngineArgs.get_batch_defaults for the API server; CacheConfig.gpu_memory_utilization."""
    engine = load_engine("vllm-0.24")
    assert engine.gpu_memory_utilization == 0.92
    for gpu, limits in (("h100", (1024, 8192)), ("h200", (1024, 8192)), ("mi300x", (1024, 8192)),
                        ("rtx-pro-6000", (1024, 8192)), ("a100-80gb", (256, 2048)), ("a100-pcie-80gb", (256, 2048)),
                        ("l40s", (256, 2048)), ("rtx-4090", (256, 2048))):
        assert engine.default_limits(load_gpu(gpu)) == limits
        found = capacity(gpu, "llama-3.1-8b")
        assert (found.max_num_seqs, found.max_num_batched_tokens) == limits
        assert found.usable_bytes == int(0.92 * load_gpu(gpu).memory_bytes)


def test_engines_before_0_21_leave_graphs_to_the_rest_of_the_memory() -> None:
    """8B on an RTX 4090: 40,528 tokens in a public log of vLLM 0.11, 5 % of a 24 GB card."""
    old = kv_capacity(load_gpu("rtx-4090"), load_engine("vllm-0.11"), load_model("llama-3.1-8b"))
    assert (old.graph_bytes, old.tokens) == (0, pytest.approx(40_528, rel=0.05))
    assert capacity("h100", "qwen2.5-14b").graph_bytes > 0


def test_graph_memory_follows_the_captured_sizes() -> None:
    """Older runner: graphs of 35 sizes up to 256 tokens with prefill and of 19 up to 128 sequences, 51 and 35 for 256;
    no size above the token budget. Not split by tensor parallelism: each GPU launches all kernels."""
    seqs = {each: capacity("h100", "qwen2.5-14b", max_num_seqs=each).graph_bytes for each in (128, 256, 1024)}
    assert seqs[256] / seqs[128] == pytest.approx(86 / 54) and seqs[1024] / seqs[128] == pytest.approx(102 / 54)
    assert capacity("h100", "qwen2.5-14b", max_num_seqs=256, max_num_batched_tokens=256).graph_bytes == pytest.approx(
        seqs[128] * 70 / 54)
    assert capacity("h100", "qwen2.5-14b", 2, max_num_seqs=128).graph_bytes == seqs[128]


def test_the_newer_runner_takes_no_graphs_off() -> None:
    """Llama runs on it, but with n-gram drafts on the older: 32 layers, 51 sizes up to 512 tokens, twice."""
    engine = load_engine("vllm-0.24")
    assert capacity("h200", "llama-3.1-8b").graph_bytes == 0
    drafts = capacity("h200", "llama-3.1-8b", max_num_seqs=128, draft_tokens=4).graph_bytes
    assert drafts == round(32 * 102 * engine.graph_layer_memory_bytes)


@pytest.mark.parametrize(("model", "tp", "budget", "copied"), [
    ("llama-3.1-8b", 1, 2048, 128_256 * 4096 * 2 + 2 * 2048 * 4096 * 2),
    ("llama-3.1-8b", 1, 8192, 128_256 * 4096 * 2 + 2 * 8192 * 4096 * 2),
    ("llama-3.1-8b", 2, 2048, 128_256 * 4096 + 2 * 2048 * 4096 * 2),
    ("llama-3.1-8b-awq", 1, 2048, 128_256 * 4096 * 2 + 2 * 2048 * 4096 * 2),
    ("llama-3.3-70b-fp8", 1, 2048, 128_256 * 8192 * 2 + 2 * 2048 * 8192 * 2),
    ("qwen3-8b-fp8", 1, 2048, 151_936 * 4096 * 2 + 2 * 2048 * 4096 * 2),
    ("gemma-3-27b", 1, 2048, 262_208 * 5376 * 2 + 2 * 2048 * 5376 * 2),
])  # fmt: skip
def test_a_first_start_copies_the_embedding_table(model: str, tp: int, budget: int, copied: int) -> None:
    """As traced: one block of 2,688.7 MiB and two of 21.0 (Gemma-3-27B); 16 bits also where layers have 8 or 4; its
    share with tensor parallelism, whose hidden states are whole."""
    found = capacity("h200", model, tp, weight_dtype="auto", max_num_seqs=128, max_num_batched_tokens=budget)
    assert found.activation_bytes == copied
    if model == "gemma-3-27b":
        assert round(262_208 * 5376 * 2 / 2**20, 1) == 2688.7 and 2048 * 5376 * 2 / 2**20 == 21.0


@pytest.mark.parametrize(("model", "peak"), [
    ("llama-3.1-8b", 2048 * (3 * 4096 + 3 * 14_336) * 2), ("llama-3.3-70b-fp8", 2048 * (3 * 8192 + 3 * 28_672) * 2),
    ("gpt-oss-20b", 18 * 128 * 201_088),
])  # fmt: skip
def test_a_later_start_keeps_its_forward_pass_or_its_sampler(model: str, peak: int) -> None:
    """Nothing is tuned. gpt-oss runs on the older of two runners, whose sampler takes 18 bytes a logit."""
    limits = {"weight_dtype": "auto", "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    later, first = (capacity("h200", model, compile_cache=each, **limits) for each in (True, False))
    assert later.activation_bytes == peak and later.num_gpu_blocks > first.num_gpu_blocks
    assert later.compile_cache and not first.compile_cache
    assert later.kv_bytes - first.kv_bytes == first.activation_bytes - peak


def test_samplers_of_many_rows_outgrow_the_table() -> None:
    """1,024 rows: 18 bytes a logit on the older runner; 6 on the newer, less than the table and the forward pass."""
    older = capacity("h200", "qwen2.5-14b", max_num_seqs=1024, max_num_batched_tokens=2048)
    assert older.activation_bytes == 18 * 1024 * 152_064
    newer = {cache: capacity("h200", "llama-3.1-8b", max_num_seqs=1024, max_num_batched_tokens=2048,
                             compile_cache=cache).activation_bytes for cache in (False, True)}
    assert newer == {False: 128_256 * 4096 * 2 + 2 * 2048 * 4096 * 2, True: 6 * 1024 * 128_256}


def test_a_stage_of_a_pipeline_copies_its_table_too() -> None:
    """The fullest stage is the first: half the layers, the table and its copy, whole."""
    found = capacity("h200", "llama-3.1-8b", stages=2, max_num_seqs=128, max_num_batched_tokens=2048)
    assert found.activation_bytes == 128_256 * 4096 * 2 + 2 * 2048 * 4096 * 2
    assert found.workspace_bytes == capacity("h200", "llama-3.1-8b").workspace_bytes


def test_collectives_take_their_own_workspace() -> None:
    """Two GPUs of vLLM 0.24 with the 8B keep 1.13 GiB each, 0.24 of it workspace and 0.52 the half table and hidden
    states: collectives take 0.37; the 14B and the 30B leave 0.6 for them, graphs taken as large as on one GPU."""
    one, two, four = (capacity("h200", "llama-3.1-8b", tp).workspace_bytes / 2**30 for tp in (1, 2, 4))
    assert 0.37 < two - one < 0.61 and two == four


def test_engines_that_were_not_looked_at_have_no_later_start() -> None:
    for name in ("vllm-0.11", "sglang", "tensorrt-llm", "unit"):
        with pytest.raises(ConfigError, match=rf"compile_cache means nothing for {name}: .* of vllm-0.24 only"):
            kv_capacity(load_gpu("h200"), load_engine(name), load_model("llama-3.1-8b"), compile_cache=True)


@pytest.mark.parametrize(("model", "rows", "width"), [
    ("llama-3.1-8b", 131_072, 128), ("gemma-3-27b", 9 * 131_072, 128), ("gpt-oss-20b", 131_072, 64),
    ("deepseek-v2-lite", 163_840, 64), ("phi-4-mini", 131_072, 96), ("opt-13b", 0, 128),
])  # fmt: skip
def test_tables_of_rotary_positions(model: str, rows: int, width: int) -> None:
    """A row of cosines and sines a position, as scaling stretches them: Gemma 3 eight times and its windows' own; only
    of the part of a head that has positions (latent attention, Phi-4-mini)."""
    shape = load_model(model)
    assert shape.rotary == rows * width
    assert beside_weights(shape, "auto", 1) == 2 * rows * width or model == "gpt-oss-20b"


def test_windowed_layers_hold_the_window_only() -> None:
    """Gemma-3-27B by hand: seven groups of 10 layers, 1,310,720 bytes a block; one request of 131,072 tokens takes
    9,350 blocks at 2,048 tokens a step. vLLM prints requests that fit x their length."""
    found = capacity("a100-80gb", "gemma-3-27b")
    assert found.block_bytes == 10 * 16 * 2 * 16 * 128 * 2
    assert found.tokens == int((found.num_gpu_blocks - 1) / 9350 * 131_072)
    short = capacity("a100-80gb", "gemma-3-27b", max_model_len=1024)
    assert short.tokens < found.tokens / 3  # inside the window every layer keeps every token


def test_a_draft_takes_weights_and_blocks() -> None:
    """An EAGLE-3 draft of one layer: a 33rd layer in every block. Weights by hand: attention reads 2 x 4096, fusion
    3 x 4096 x 4096, its own head of 32,000, four norms; embedding the target's."""
    draft = load_model(MEASUREMENTS / "models" / "eagle3-llama-8b.config.json")
    weights = (6144 * 8192 + 4096 * 4096 + 3 * 4096 * 14_336 + 3 * 4096 * 4096 + 32_000 * 4096 + 5 * 4096)
    assert draft.parameters == weights
    alone = capacity("h200", "llama-3.1-8b")
    found = capacity("h200", "llama-3.1-8b", draft=draft, draft_tokens=4)
    assert found.weight_bytes - alone.weight_bytes == 2 * weights
    assert found.block_bytes == alone.block_bytes * 33 // 32


def test_the_largest_share_of_memory_an_sglang_server_takes_is_weights_and_kv() -> None:
    found = kv_capacity(load_gpu("h100"), load_engine("sglang"), load_model("llama-3.1-8b"))
    assert found.activation_bytes == found.graph_bytes == 0
    assert found.kv_bytes == int(0.88 * load_gpu("h100").memory_bytes) - found.weight_bytes - found.workspace_bytes
