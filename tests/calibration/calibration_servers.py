"""Servers made up from known factors: the simulator with CPU and GPU times scaled, its times written as clients do."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from calibration.predict import Prediction, predict, setup_of
from calibration.served import Served
from calibration.server import Server

SERVER = Server("llama-3.1-8b", "h100-sxm", max_num_seqs=128, max_num_batched_tokens=2048)
FLAGS = ("--model", "llama-3.1-8b", "--hardware", "h100", "--max-num-seqs", "128", "--max-num-batched-tokens", "2048")


def table_of(arrival: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> pd.DataFrame:
    """Requests whose times are not known yet."""
    blank = np.ones(len(prompt))
    return pd.DataFrame({"id": np.arange(len(prompt)), "arrival_s": arrival, "prompt_tokens": prompt,
                         "output_tokens": output, "ttft_s": blank, "tpot_s": blank, "e2e_s": 2 * blank})


def answered(table: pd.DataFrame, cpu: float, gpu: float, kind: str = "open", width: int = 0,
             server: Server = SERVER) -> Prediction:
    """What a server that is `cpu` and `gpu` times as slow does with the requests."""
    run = server.run(Served(Path("made"), kind, width, table))
    return predict(run, setup_of(run).slower(cpu, gpu))


def traffic(rate: float = 6.0, requests: int = 150, seed: int = 3) -> pd.DataFrame:
    """Chat-like: short and long prompts, batches of a few to some dozen sequences."""
    draw = np.random.default_rng(seed)
    arrival = draw.exponential(1 / rate, requests).cumsum()
    prompt = draw.choice([40, 120, 300, 900, 2500], requests)
    return table_of(arrival - arrival[0], prompt, draw.integers(20, 160, requests))


def vllm_bench(path: Path, table: pd.DataFrame, done: Prediction, **more: object) -> Path:
    """The file of vllm bench serve --save-result --save-detailed; itls: the stream's gaps."""
    by_id = table.set_index("id").loc[done.ids]
    output = by_id.output_tokens.to_numpy()
    rest = done.last_s - done.first_s
    content = {"model_id": "meta-llama/Llama-3.1-8B-Instruct", "request_rate": "inf", "max_concurrency": None,
               "input_lens": by_id.prompt_tokens.tolist(), "output_lens": output.tolist(),
               "ttfts": (done.first_s - done.arrival_s).tolist(), "start_times": (done.arrival_s + 1000.0).tolist(),
               "itls": [[gap / max(n - 1, 1)] * (n - 1) for gap, n in zip(rest, output, strict=True)],
               "errors": [""] * len(output), **more}
    path.write_text(json.dumps(content))
    return path
