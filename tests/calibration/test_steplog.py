"""calibrate engine from a step log alone: the engine's own logs, and that of a simulated server with known factors."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from calibration_servers import FLAGS, SERVER, traffic

from calibration.accepted import NotModelledError
from calibration.fit import MEASUREMENTS
from calibration.predict import predict, setup_of
from calibration.scales import fit_scales
from calibration.served import Served
from calibration.server import Server
from calibration.steplog import StepMeans
from simulator.cli.main import main
from simulator.errors import CalibrationError


def log_of(series: str) -> Path:
    folder = MEASUREMENTS / series
    return next(path for path in (folder / "steps.csv", folder / "steps.csv.gz") if path.is_file())


@pytest.mark.parametrize(("series", "server"), [
    ("llama8b-h100/conv_r5", SERVER),
    ("llama8b-h200-tp2/conv_burst400", Server("llama-3.1-8b", "h200-sxm", 2, max_num_seqs=128,
                                              max_num_batched_tokens=2048))])
def test_the_engines_own_logs_say_that_the_profiles_gpus_are_themselves(series: str, server: Server) -> None:
    """One and two GPUs, traffic and a burst that no profile was fitted to."""
    found = fit_scales([StepMeans(log_of(series), server)])
    assert found.gpu.known and found.gpu.value == pytest.approx(1.0, abs=0.03)
    assert found.gpu.low < 1.0 < found.gpu.high and found.cpu.low < 1.0 < found.cpu.high


def simulated_log(path: Path, cpu: float, gpu: float, server: Server = SERVER) -> Path:
    """The compiled engine's log of a server with these factors, rows of equal steps taken apart: their outputs at equal
    distances, which they are but for the last before a launch, with steps planned ahead."""
    run = server.run(Served(Path("made"), "open", 0, traffic(rate=8.0)))
    found = predict(run, setup_of(run).slower(cpu, gpu), log=True)
    assert found.log is not None
    rows, before = [], 0.0
    for row in found.log[found.log["steps"] > 0]:
        ends = np.linspace(max(before, row["start"] / 1e9), row["end"] / 1e9, int(row["steps"]) + 1)[1:]
        for k, end in enumerate(ends):
            start = row["start"] / 1e9 if k == 0 else ends[k - 1]
            rows.append((start, row["decode"], row["context"] + k * row["decode"], row["prefill"],
                         row["prefill_tokens"], row["pairs"], row["running"], row["waiting"], end))
        before = float(ends[-1])
    names = ["t_schedule_s", "n_decode", "decode_context_tokens", "n_prefill", "prefill_tokens",
             "prefill_attention_pairs", "n_running", "n_waiting", "t_output_s"]
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(("cpu", "gpu"), [(1.5, 1.1), (0.8, 0.7)])
def test_known_factors_come_back(tmp_path: Path, cpu: float, gpu: float) -> None:
    """A synchronous engine, whose equal steps are equal to the last."""
    server = replace(SERVER, engine="vllm-0.11")
    found = fit_scales([StepMeans(simulated_log(tmp_path / "steps.csv", cpu, gpu, server), server)])
    assert found.gpu.value == pytest.approx(gpu, rel=0.03) and found.cpu.value == pytest.approx(cpu, rel=0.03)


@pytest.mark.parametrize(("cpu", "gpu"), [(1.5, 1.1), (0.8, 0.7)])
def test_the_two_clocks_are_those_of_the_engine(tmp_path: Path, cpu: float, gpu: float) -> None:
    """Planned ahead, with launches longer than the GPU's work: steps with prefill end when the engine says, but for
    one in a hundred at most, scheduled in the very moment of an output: a log does not say which came first."""
    observed = StepMeans(simulated_log(tmp_path / "steps.csv", cpu, gpu), SERVER)
    prefill = np.concatenate([rows for rows, mean in zip(observed._rows, observed.means, strict=True)
                              if mean.metric == "ttft"])
    off = np.abs(observed._simulated(cpu, gpu) - observed._measured)[prefill]
    assert len(off) > 100 and np.mean(off > 1e-3) <= 0.01


def test_windowed_layers_are_refused_where_they_see_less_than_the_context() -> None:
    """A step log counts contexts whole; Mistral 7B's layers see 4,096 tokens of them."""
    path, server = log_of("llama8b-h100/conv_r5"), replace(SERVER, model="mistral-7b-v0.1")
    with pytest.raises(NotModelledError, match="has windowed attention of 4096 tokens: a step log does not say"):
        StepMeans(path, server)
    assert StepMeans(path, replace(server, max_model_len=4096)).means


def test_what_a_log_must_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("t_schedule_s,n_decode\n0,1\n")
    assert main(["calibrate", "engine", str(path), *FLAGS]) == 2
    assert "steps.csv: column decode_context_tokens is missing" in capsys.readouterr().err
    table = pd.read_csv(log_of("llama8b-h100/conv_r5")).head(20)
    table.to_csv(path, index=False)
    with pytest.raises(CalibrationError, match="steps follow another at once; accepted: 30 or more"):
        StepMeans(path, SERVER)
    shutil.copy(log_of("llama8b-h100/conv_r5"), tmp_path)
    name = str(tmp_path / log_of("llama8b-h100/conv_r5").name)
    assert main(["calibrate", "engine", name, "--hardware", "h100"]) == 2
    assert "needed: --model" in capsys.readouterr().err
