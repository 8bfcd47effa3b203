"""Every command refuses a max_model_len that the engine would not start with, in one line with the numbers."""

from pathlib import Path

import yaml

from simulator.ui.model import evaluate
from simulator.ui.settings import Settings
from tests.cli.conftest import Outcome, Run

CHAT = Path(__file__).parents[2] / "scenarios" / "chat.yaml"
L4 = ("--set", "hardware.gpu=l4", "--set", "max_model_len=120000")


def refused(outcome: Outcome) -> None:
    assert outcome.code == 2 and outcome.out == ""
    line = outcome.err.splitlines()[-1]
    assert "--set: max_model_len: must be <= " in line or "--max-model-len: must be <= " in line
    assert "GiB of KV per GPU" in line and "L4-24GB" in line


def test_run_and_compare(servecast: Run) -> None:
    refused(servecast("run", "chat", *L4))
    refused(servecast("compare", "chat", "--policies", "static,chunked", *L4))


def test_kv(servecast: Run) -> None:
    refused(servecast("kv", "llama-3.1-8b", "l4", "--max-model-len", 120_000))
    default = servecast("kv", "llama-3.1-8b", "l4", "h100-sxm")
    assert default.code == 0 and "L4-24GB: an engine would not start" in default.err and "H100" not in default.err
    assert servecast("kv", "llama-3.1-8b", "l4", "--max-model-len", 16_384).code == 0
    assert "the positions of" in servecast("kv", "llama-3.1-8b", "l4", "--max-model-len", 131_073).err


def test_whatif(servecast: Run, tmp_path: Path) -> None:
    overlays = tmp_path / "w.yaml"
    overlays.write_text("replications: 1\noverlays: [{name: small, set: {hardware.gpu: l4, max_model_len: 120000}}]")
    refused(servecast("whatif", "chat", overlays, *L4))
    few = ("--set", "workload.arrivals.requests=20")
    found = servecast("whatif", "chat", overlays, *few)  # the base runs, the overlay says why it does not
    assert found.code == 0 and "GiB of KV per GPU" in found.out


def test_sweep(servecast: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({
        "base": str(CHAT), "axes": [{"grid": {"hardware.gpu": ["l4"], "max_model_len": [120_000]}}]}))
    servecast("sweep", path, "--out", tmp_path / "out", "--jobs", 1)
    shown = servecast("sweep", "show", tmp_path / "out")
    assert "GiB of KV per GPU" in shown.out + shown.err


def test_plan(servecast: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({
        "workload": {"requests": {"output": [4] * 5}}, "slo": {"ttft_p50_s": 1}, "max_model_len": 120_000,
        "candidates": {"gpu": ["l4"]}}))
    found = servecast("plan", path)
    text = " ".join(found.out.split())  # a cell of a table is wrapped
    assert found.code == 3 and "does not fit" in text and "GiB of KV per GPU" in text


def test_page() -> None:
    """Command R has 64 KV heads: what 65 GiB of weights leave on an H100 holds 4,000 tokens, no sequence of 12,000."""
    view = evaluate(Settings(gpu="h100-sxm", model="command-r", policy="vllm_v0"), pictures=False)
    assert "max_model_len: must be <=" in view.error and "GiB of KV per GPU" in view.error
