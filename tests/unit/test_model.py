"""Model shapes against published parameter counts and sizes worked out by hand."""

import dataclasses
import json
from pathlib import Path

import pytest

from simulator.errors import ConfigError, UnknownNameError
from simulator.profiles.model import Gemm, ModelShape, load_model

# Worked out from the layers of Zhang et al. 2022 (arXiv:2205.01068); other counts: test_model_truths.
OPT_13B = (50_272 * 5120 + 2050 * 5120                               # embedding (tied head), positions + 2
           + 40 * (4 * (5120 * 5120 + 5120) + 2 * 5120 * 20_480 + 20_480 + 5120  # attention, MLP, biases
                   + 2 * 2 * 5120) + 2 * 5120)                       # two LayerNorms a layer, one at the end
DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-7b", "qwen2.5-14b", "qwen3-8b", "mistral-7b-v0.3", "opt-13b")


def test_parameters_of_opt_by_hand() -> None:
    assert load_model("opt-13b").parameters == OPT_13B


def test_kv_bytes_per_token_worked_by_hand() -> None:
    # 2 (K and V) x layers x KV heads x head size x bytes
    assert load_model("llama-3.1-8b").kv_bytes_per_token("bf16") == 2 * 32 * 8 * 128 * 2 == 131_072
    assert load_model("llama-3.1-8b").kv_bytes_per_token("fp8") == 65_536
    assert load_model("opt-13b").kv_bytes_per_token("fp16") == 2 * 40 * 40 * 128 * 2 == 819_200
    assert load_model("qwen2.5-14b").kv_bytes_per_token("bfloat16") == 2 * 48 * 8 * 128 * 2 == 196_608


def test_kv_heads_are_copied_when_there_are_fewer_than_gpus() -> None:
    model = load_model("llama-3.1-70b")  # 8 KV heads
    per_gpu = [model.kv_bytes_per_token("bf16", tp) for tp in (1, 2, 4, 8, 16)]
    assert [per_gpu[0] // size for size in per_gpu] == [1, 2, 4, 8, 8]


def test_gemm_shapes_of_the_8b_as_benchmarked() -> None:
    model = load_model("llama-3.1-8b")
    assert model.gemm_shapes() == [Gemm("qkv", 6144, 4096), Gemm("o", 4096, 4096),
                                   Gemm("gate_up", 28672, 4096), Gemm("down", 4096, 14336)]
    assert model.head_shape() == Gemm("lm_head", 128_256, 4096)


@pytest.mark.parametrize("name", DENSE)
def test_tensor_parallel_halves_the_matrices(name: str) -> None:
    model = load_model(name)
    assert model.layer_weights(2) * 2 == model.layer_weights(1)
    assert model.flops_per_token(2) * 2 == model.flops_per_token(1)
    assert model.attention_flops_per_pair(2) * 2 == model.attention_flops_per_pair(1)


def test_weight_bytes() -> None:
    model = load_model("llama-3.1-8b")
    assert model.weight_bytes("bf16") == 2 * 8_030_261_248
    # fp8 halves the layers' 218,103,808 x 32 weights; embedding, head and 65 norms stay in 16 bits
    layers, rest = 32 * 218_103_808, 2 * 128_256 * 4096 + 65 * 4096
    assert model.weight_bytes("fp8") == layers + 2 * rest
    assert model.weight_bytes("int4") < model.weight_bytes("fp4") < model.weight_bytes("fp8")


def test_flops_per_token_is_two_per_weight() -> None:
    assert load_model("llama-3.1-8b").flops_per_token() == 2 * 32 * 218_103_808
    # 2 x QK^T and 2 x PV, 32 heads of 128, 32 layers
    assert load_model("llama-3.1-8b").attention_flops_per_pair() == 4 * 32 * 128 * 32


def test_names_and_paths(tmp_path: Path) -> None:
    shipped = load_model("llama-3.1-8b")
    assert load_model("meta-llama/Llama-3.1-8B-Instruct") == shipped
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512}
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(folder)
    assert (model.name, model.kv_heads, model.head_dim) == ("tiny", 4, 16)
    assert load_model(folder / "config.json") == model


def test_unknown_name_says_where_the_known_are_listed() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'gpt-5'; known: .*servecast models lists them"):
        load_model("gpt-5")
    with pytest.raises(UnknownNameError, match="unknown dtype 'fp7'"):
        load_model("opt-13b").weight_bytes("fp7")


@pytest.mark.parametrize(("change", "message"), [
    ({"model_type": "bloom"}, "model_type must be one of .*, got 'bloom'"),
    ({"model_type": "mamba"}, "model_type 'mamba' is a state-space model: not modelled"),
    ({"model_type": "qwen3_next"}, "'qwen3_next' has gated delta-net .linear attention. layers: not modelled"),
    ({"model_type": "mixtral"}, "num_local_experts must be a whole number >= 1, got None"),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method must be one of awq, .*'bitsandbytes'"),
    ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "weights of 4 or 8 bits are modelled, got 3"),
    ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number >= 1, got 0"),
    ({"vocab_size": None}, "vocab_size must be a whole number >= 1, got None"),
    ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
      "mlp_only_layers": 5}, "a value is not of the kind its key needs"),
    ({"text_config": 5}, "text_config must be a mapping, got int"),
    ({"quantization_config": {"quant_method": "fp8", "ignored_layers": ["re:["]}},
     "quantization_config cannot be read"),
    ({"sliding_window": -1}, "sliding_window must be a whole number >= 1, got -1"),
    ({"sliding_window": 8, "layer_types": ["sliding_attention"]}, "layer_types must name 2 layers, got 1"),
])
def test_configs_that_cannot_be_used(tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
              "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 512} | change
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        load_model(path)


def test_files_that_are_no_config(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match=r"broken\.json: not a readable config"):
        load_model(broken)
    with pytest.raises(ConfigError, match="no such model config file"):
        load_model(tmp_path / "absent.json")


def test_uneven_tensor_parallelism_is_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel 3 does not divide 32 heads"):
        load_model("llama-3.1-8b").gemm_shapes(3)
    with pytest.raises(ConfigError, match="tensor_parallel must be >= 1, got 0"):
        load_model("llama-3.1-8b").gemm_shapes(0)


MIXTRAL = {"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
           "vocab_size": 32_000, "max_position_embeddings": 32_768}


def test_a_token_meets_its_active_experts_only(tmp_path: Path) -> None:
    """Mixtral of Experts (Jiang et al. 2024, arXiv:2401.04088): 47B parameters, 13B of them used by a token."""
    path = tmp_path / "mixtral.json"
    path.write_text(json.dumps(MIXTRAL))
    model = load_model(path)
    assert model.parameters == 46_702_792_704  # safetensors metadata on Hugging Face
    active = model.flops_per_token() // 2 + 2 * 32_000 * 4096
    assert active == pytest.approx(12.9e9, rel=0.005)
    assert model.weight_bytes("bf16", 2) == pytest.approx(model.weight_bytes("bf16") / 2, rel=1e-4)


def test_what_step_times_do_not_cover_is_named() -> None:
    model = load_model("llama-3.1-8b")
    assert model.beyond_step_costs(131_072) == model.beyond_roofline(131_072) == []
    sliding = dataclasses.replace(model, windows=(4096, 0) * 16)
    assert sliding.beyond_roofline(4096) == []  # no request is longer than the window
    assert sliding.beyond_roofline(4097) == ["sliding-window attention of 4096 tokens"]
    assert sliding.beyond_step_costs(131_072) == []
    two = dataclasses.replace(model, windows=(4096, 512) * 16)
    assert two.beyond_step_costs(131_072) == ["windowed attention of 512 and 4096 tokens"]


def _awq(tmp_path: Path, **quantisation: object) -> ModelShape:
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
              "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
              "max_position_embeddings": 8192, "quantization_config": quantisation}
    path = tmp_path / "quantised.json"
    path.write_text(json.dumps(config))
    return load_model(path)


def test_ignored_modules_stay_in_16_bits(tmp_path: Path) -> None:
    """By hand: attention of a layer holds 4096 x (4096 + 2 x 1024) + 4096 x 4096 = 41,943,040 weights."""
    attention, rest = 32 * 41_943_040, 2 * 128_256 * 4096 + 65 * 4096
    mlp = 32 * 3 * 4096 * 14_336
    whole = _awq(tmp_path, quant_method="fp8")
    assert whole.weight_bytes("auto") == attention + mlp + 2 * rest
    for ignored in (["re:.*self_attn.*", "lm_head"], [f"model.layers.{layer}.self_attn" for layer in range(32)],
                    ["model.layers.*.self_attn*"]):
        part = _awq(tmp_path, quant_method="fp8", modules_to_not_convert=ignored)
        assert part.weight_bytes("auto") == 2 * attention + mlp + 2 * rest
        assert part.weights.part_dtype("attention") == "bf16"
        assert part.weights.part_dtype("mlp") == "fp8"
    first = _awq(tmp_path, quant_method="compressed-tensors", ignore=["model.layers.0.mlp.down_proj"], config_groups={
        "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}})
    assert first.weight_bytes("auto") == attention + mlp + 4096 * 14_336 + 2 * rest


def test_group_scales_and_zero_points_are_counted(tmp_path: Path) -> None:
    """AWQ, groups of 128: 128 x 4 bits, a 16-bit scale and a 4-bit zero point are 66.5 bytes."""
    weights = _awq(tmp_path, quant_method="awq", bits=4, group_size=128).weights
    assert 128 * weights.bytes_per_weight == 66.5
    symmetric = _awq(tmp_path, quant_method="gptq", bits=8, group_size=32, sym=True).weights
    assert (32 * symmetric.bytes_per_weight, symmetric.dtype) == (34, "int8")


def test_a_quantised_checkpoint_is_not_loaded_as_something_else(tmp_path: Path) -> None:
    model = _awq(tmp_path, quant_method="awq", bits=4, group_size=128)
    assert model.weight_bytes("auto") == model.weight_bytes("int4") == model.weight_bytes("bf16")
    with pytest.raises(ConfigError, match=r"quantised: the checkpoint is int4 \(awq, groups of 128\); weight_dtype "
                                          "must be auto or int4, got fp8"):
        model.weight_bytes("fp8")
