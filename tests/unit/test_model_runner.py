"""Which of vLLM 0.24's two model runners takes a model: its own list of classes (vllm/config/vllm.py,
DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES), nothing measured."""

import json
from pathlib import Path

import pytest

from simulator.cost.calibrated import calibrated_cost
from simulator.errors import ConfigError
from simulator.profiles.engine import load_engine
from simulator.profiles.gpu import load_gpu
from simulator.profiles.model import load_model

NEWER = ("llama-3.1-8b", "llama-2-7b", "mistral-7b-v0.2", "qwen3-8b", "qwen3-0.6b", "qwen1.5-moe-a2.7b",
         "deepseek-v2-lite")
OLDER = ("qwen2.5-14b", "qwen2.5-0.5b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "mixtral-8x7b",
         "mistral-small-3.1-24b", "gemma-2-9b", "phi-4")


@pytest.mark.parametrize("name", NEWER)
def test_classes_on_the_engines_list_run_on_the_newer_runner(name: str) -> None:
    assert not load_engine("vllm-0.24").older_runner(load_model(name).architectures)


@pytest.mark.parametrize("name", OLDER)
def test_all_other_classes_run_on_the_older_runner(name: str) -> None:
    assert load_engine("vllm-0.24").older_runner(load_model(name).architectures)


def test_ngram_drafts_run_on_the_older_runner_whatever_the_model() -> None:
    llama = load_model("llama-3.1-8b").architectures
    assert load_engine("vllm-0.24").older_runner(llama, "ngram")
    assert not load_engine("vllm-0.24").older_runner(llama, "eagle3")


def test_engines_before_have_one_runner() -> None:
    assert not load_engine("vllm-0.11").older_runner(load_model("qwen2.5-14b").architectures)


def test_the_class_in_the_config_counts_not_its_type(tmp_path: Path) -> None:
    """A Llama in shape whose class is another: with two GPUs 512-token steps are launched as on the older runner."""
    source = load_model("llama-3.1-8b")
    content = {"model_type": "llama", "architectures": ["OtherForCausalLM"], "hidden_size": source.hidden,
               "intermediate_size": source.intermediate, "num_hidden_layers": source.layers,
               "num_attention_heads": source.heads, "num_key_value_heads": source.kv_heads,
               "vocab_size": source.vocab, "max_position_embeddings": 8192}
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    gpu, engine = load_gpu("h200-sxm"), load_engine("vllm-0.24")
    mine, llama = (calibrated_cost(gpu, engine, load_model(name), 2, "bf16", "bf16", 128, 2048)
                   for name in (path, "llama-3.1-8b"))
    assert mine.dense_ns[1, 600] > 1.5 * llama.dense_ns[1, 600]
    assert mine.dense_ns[1, 128] == llama.dense_ns[1, 128]


def test_architectures_must_be_names(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"model_type": "llama", "architectures": "LlamaForCausalLM", "hidden_size": 64,
                                "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
                                "vocab_size": 64, "max_position_embeddings": 64}))
    with pytest.raises(ConfigError, match="architectures must be a list of class names, got 'LlamaForCausalLM'"):
        load_model(path)
