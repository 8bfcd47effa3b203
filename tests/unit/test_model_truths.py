"""Every shipped model against public figures: parameters, KV bytes a token, checkpoint sizes; each with its source.

Parameters: the count that the Hub shows with the weights (safetensors metadata), or the authors' paper or card where
one is named; for a mixture of experts without the layers that only predict further tokens (DeepSeek-V3: 671B of 685B).
KV: layers, KV heads and head size as the model card or paper has them, 2 x layers x heads x size x 2 bytes; a latent
row is kv_lora_rank + qk_rope_head_dim.
"""

import pytest

from simulator.profiles.kv_groups import kv_groups
from simulator.profiles.model import list_models, load_model

# name: (parameters, (layers, KV heads, head size))
HUB = {
    "llama-3.1-8b": (8_030_261_248, (32, 8, 128)), "llama-3.1-70b": (70_553_706_496, (80, 8, 128)),
    "llama-3.1-405b": (405_853_388_800, (126, 8, 128)), "llama-3.3-70b": (70_553_706_496, (80, 8, 128)),
    "llama-3.2-1b": (1_235_814_400, (16, 8, 64)), "llama-3.2-3b": (3_212_749_824, (28, 8, 128)),
    "llama-2-7b": (6_738_415_616, (32, 32, 128)), "llama-2-13b": (13_015_864_320, (40, 40, 128)),
    "llama-2-70b": (68_976_648_192, (80, 8, 128)),
    "mistral-7b-v0.1": (7_241_732_096, (32, 8, 128)), "mistral-7b-v0.2": (7_241_732_096, (32, 8, 128)),
    "mistral-7b-v0.3": (7_248_023_552, (32, 8, 128)), "mistral-nemo-12b": (12_247_782_400, (40, 8, 128)),
    "mistral-small-24b": (23_572_403_200, (40, 8, 128)),
    "mistral-small-3.1-24b": (24_011_361_280, (40, 8, 128)), "mistral-small-3.2-24b": (24_011_361_280, (40, 8, 128)),
    "mixtral-8x7b": (46_702_792_704, (32, 8, 128)), "mixtral-8x22b": (140_630_071_296, (56, 8, 128)),
    "qwen2.5-0.5b": (494_032_768, (24, 2, 64)), "qwen2.5-1.5b": (1_543_714_304, (28, 2, 128)),
    "qwen2.5-3b": (3_085_938_688, (36, 2, 128)), "qwen2.5-7b": (7_615_616_512, (28, 4, 128)),
    "qwen2.5-7b-1m": (7_615_616_512, (28, 4, 128)), "qwen2.5-14b": (14_770_033_664, (48, 8, 128)),
    "qwen2.5-32b": (32_763_876_352, (64, 8, 128)), "qwen2.5-72b": (72_706_203_648, (80, 8, 128)),
    "qwen2.5-vl-7b": (8_292_166_656, (28, 4, 128)),
    "qwen3-0.6b": (596_049_920, (28, 8, 128)), "qwen3-1.7b": (1_720_574_976, (28, 8, 128)),  # a tied head counted once
    "qwen3-4b": (4_022_468_096, (36, 8, 128)), "qwen3-4b-2507": (4_022_468_096, (36, 8, 128)),
    "qwen3-8b": (8_190_735_360, (36, 8, 128)), "qwen3-14b": (14_768_307_200, (40, 8, 128)),
    "qwen3-32b": (32_762_123_264, (64, 8, 128)), "qwen3-30b-a3b": (30_532_122_624, (48, 4, 128)),
    "qwen3-30b-a3b-2507": (30_532_122_624, (48, 4, 128)), "qwen3-coder-30b-a3b": (30_532_122_624, (48, 4, 128)),
    "qwen3-235b-a22b": (235_093_634_560, (94, 4, 128)), "qwen3-235b-a22b-2507": (235_093_634_560, (94, 4, 128)),
    "qwen3-coder-480b-a35b": (480_154_875_392, (62, 8, 128)), "qwen1.5-moe-a2.7b": (14_315_784_192, (24, 16, 128)),
    "deepseek-r1-distill-llama-70b": (70_553_706_496, (80, 8, 128)),
    "deepseek-r1-distill-qwen-32b": (32_763_876_352, (64, 8, 128)),
    "gemma-7b": (8_537_680_896, (28, 16, 256)), "gemma-2-2b": (2_614_341_888, (26, 4, 256)),
    "gemma-2-9b": (9_241_705_984, (42, 8, 256)), "gemma-2-27b": (27_227_128_320, (46, 16, 128)),
    "gemma-3-1b": (999_885_952, (26, 1, 256)), "gemma-3-4b": (4_300_079_472, (34, 4, 256)),
    "gemma-3-12b": (12_187_325_040, (48, 8, 256)), "gemma-3-27b": (27_432_406_640, (62, 16, 128)),
    "phi-3-mini": (3_821_079_552, (32, 32, 96)), "phi-3.5-mini": (3_821_079_552, (32, 32, 96)),
    "phi-3-medium": (13_960_238_080, (40, 10, 128)), "phi-4-mini": (3_836_021_760, (32, 8, 128)),
    "phi-4": (14_659_507_200, (40, 10, 128)),
    "granite-3.1-8b": (8_170_848_256, (40, 8, 128)), "granite-4.0-micro": (3_402_836_480, (40, 8, 64)),
    "command-r": (34_980_831_232, (40, 64, 128)),
    "gpt-oss-20b": (20_914_757_184, (24, 8, 64)), "gpt-oss-120b": (116_829_156_672, (36, 8, 64)),
    "opt-13b": (12_853_473_280, (40, 40, 128)),
}
# Counts that are public in billions only, as the paper or card gives them: name: (parameters, last digit given, KV row)
PAPERS = {
    "deepseek-v3": (671e9, 1e9, 61 * (512 + 64) * 2), "deepseek-r1": (671e9, 1e9, 61 * (512 + 64) * 2),
    "deepseek-v2": (236e9, 1e9, 60 * (512 + 64) * 2), "deepseek-v2-lite": (15.7e9, 0.1e9, 27 * (512 + 64) * 2),
    "kimi-k2": (1.03e12, 0.01e12, 61 * (512 + 64) * 2),  # card of the technical report: 1.04T; the Hub: 1.03T
    "glm-4.5": (355e9, 3e9, 2 * 92 * 8 * 128 * 2), "glm-4.5-air": (106e9, 1e9, 2 * 46 * 8 * 128 * 2),
    "llama-4-scout": (109e9, 2e9, 2 * 48 * 8 * 128 * 2),     # the card counts the vision encoder too
    "llama-4-maverick": (400e9, 1e9, 2 * 48 * 8 * 128 * 2),
}
QUANTISED = ("-awq", "-fp8", "-gptq-int4")


@pytest.mark.parametrize("name", HUB)
def test_parameters_and_kv_of_the_hub(name: str) -> None:
    parameters, (layers, heads, size) = HUB[name]
    model = load_model(name)
    assert model.parameters == parameters
    assert model.kv_bytes_per_token() == 2 * layers * heads * size * 2


@pytest.mark.parametrize("name", PAPERS)
def test_parameters_and_kv_of_papers(name: str) -> None:
    parameters, digit, row = PAPERS[name]
    model = load_model(name)
    assert model.parameters == pytest.approx(parameters, abs=digit)
    assert model.kv_bytes_per_token() == row


def test_every_shipped_model_is_checked() -> None:
    """A quantised name by the shape it shares with its 16-bit one."""
    plain = {name for name in list_models() if not name.endswith(QUANTISED)}
    assert plain == {*HUB, *PAPERS}
    assert len(list_models()) >= 40
    for name in set(list_models()) - plain:
        ending = next(each for each in QUANTISED if name.endswith(each))
        model, whole = load_model(name), load_model(name.removesuffix(ending))
        assert (model.parameters, model.kv_bytes_per_token()) == (whole.parameters, whole.kv_bytes_per_token())
        assert model.weights.dtype == ("fp8" if ending == "-fp8" else "int4")
        assert model.weight_bytes("auto") < 0.61 * whole.weight_bytes("auto")


@pytest.mark.parametrize(("name", "gib", "within", "source"), [
    ("gpt-oss-20b", 12.8, 0.01, "gpt-oss model card, table of checkpoint sizes"),
    ("gpt-oss-120b", 60.8, 0.01, "gpt-oss model card, table of checkpoint sizes"),
    ("qwen3-14b-awq", 9.44, 0.03, "vLLM 0.28 log, 'Model loading took'; a peak, repacking included"),
    ("qwen2.5-7b-awq", 5.29, 0.03, "vLLM 0.26 log, 'Model loading took'; a peak, repacking included"),
    ("llama-3.1-8b-awq", 5.34, 0.01, "size of the safetensors files of hugging-quants on the Hub, 5.74 GB"),
    ("qwen2.5-14b", 2 * 13.9476, 0.015, "vLLM issue 13061: 13.9476 GiB on each of two GPUs"),
    ("qwen3-30b-a3b", 56.9, 0.005, "own run of vLLM 0.24 on one H200"),
])
def test_bytes_of_weights(name: str, gib: float, within: float, source: str) -> None:
    assert load_model(name).weight_bytes("auto") / 2**30 == pytest.approx(gib, rel=within), source


@pytest.mark.parametrize(("name", "active", "source"), [
    ("deepseek-v3", 37e9, "arXiv:2412.19437, abstract"), ("qwen3-30b-a3b", 3.3e9, "model card"),
    ("qwen3-235b-a22b", 22e9, "model card"), ("gpt-oss-120b", 5.1e9, "model card"),
    ("gpt-oss-20b", 3.6e9, "model card"), ("mixtral-8x7b", 12.9e9, "arXiv:2401.04088"),
    ("deepseek-v2", 21e9, "arXiv:2405.04434, abstract"), ("llama-4-scout", 17e9, "model card"),
    ("llama-4-maverick", 17e9, "model card"), ("glm-4.5-air", 12e9, "model card"), ("kimi-k2", 32e9, "model card"),
])
def test_active_parameters(name: str, active: float, source: str) -> None:
    """What one token meets: layers and head; cards round, and count the embedding or do not: 8 %."""
    model = load_model(name)
    head = model.head_shape()
    met = model.flops_per_token() / 2 + head.n * head.k
    assert met == pytest.approx(active, rel=0.08) or met + head.n * head.k == pytest.approx(active, rel=0.08), source


@pytest.mark.parametrize(("name", "window", "beyond"), [
    ("gemma-2-27b", 4096, 188_416),   # 23 of 46 layers, 2 x 16 x 128 x 2 bytes each
    ("gemma-3-27b", 1024, 81_920),    # 10 of 62 layers
    ("gemma-3-1b", 512, 4 * 2 * 256 * 2),    # 4 of 26 layers
    ("gpt-oss-20b", 128, 24_576),     # 12 of 24 layers, 2 x 8 x 64 x 2 bytes each
    ("mistral-7b-v0.1", 4096, 0),     # arXiv:2310.06825: every layer slides
    ("llama-4-scout", 8192, 12 * 2 * 8 * 128 * 2),   # every fourth layer attends to everything
])
def test_a_token_beyond_the_window_costs_the_full_layers_only(name: str, window: int, beyond: int) -> None:
    model = load_model(name)
    assert model.window == window
    assert model.kv_bytes_per_token(context=window) == beyond
    assert model.kv_bytes_per_token(context=window - 1) == model.kv_bytes_per_token()


def test_latent_rows_are_not_divided_by_tensor_parallelism() -> None:
    """DeepSeek-V3: 70,272 bytes a token on each GPU; FP8 KV halves them."""
    model = load_model("deepseek-v3")
    assert [model.kv_bytes_per_token("bf16", tp) for tp in (1, 8, 16)] == [70_272] * 3
    assert model.kv_bytes_per_token("fp8") == 35_136


@pytest.mark.parametrize(("name", "size", "windows"), [
    ("gemma-3-27b", 10, (0,) + (1024,) * 6),   # 52 windowed layers in groups of the 10 full ones, the last one padded
    ("gemma-2-27b", 23, (0, 4096)), ("gpt-oss-20b", 12, (0, 128)), ("llama-4-scout", 12, (0, 8192, 8192, 8192)),
    ("mistral-7b-v0.1", 32, (4096,)), ("llama-3.1-8b", 32, (0,)),
])
def test_groups_of_layers_as_vllm_makes_them(name: str, size: int, windows: tuple[int, ...]) -> None:
    """vLLM 0.24, kv_cache_utils._get_kv_cache_groups_uniform_page_size: groups of the rarer kind's size."""
    groups = kv_groups(load_model(name))
    assert (groups.size, groups.windows) == (size, windows)


def test_blocks_of_a_long_request_in_groups() -> None:
    """By hand, Gemma-3-27B, 131,072 tokens, 2,048 a step, blocks of 16: 8,192 in the full group; in each of six
    others the window less one and a step, 3,071 tokens, in 192 blocks and one that the window cuts."""
    groups = kv_groups(load_model("gemma-3-27b"))
    assert groups.blocks(131_072, 2048, 16) == 8192 + 6 * 193
    assert groups.blocks(160, 2048, 16) == 10 + 6 * 11


@pytest.mark.parametrize(("written", "name"), [
    ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("google/gemma-3-27b-it", "gemma-3-27b"),
    ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b-fp8"), ("Qwen/Qwen3-14B-AWQ", "qwen3-14b-awq"),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"), ("openai/gpt-oss-120b", "gpt-oss-120b"),
    ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b-v0.1"), ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"), ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
    ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b-awq"),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b-fp8"),
    ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"), ("CohereForAI/c4ai-command-r-v01", "command-r"),
    ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b-2507-fp8"),
])
def test_names_as_the_hub_writes_them(written: str, name: str) -> None:
    assert load_model(written).name == name
