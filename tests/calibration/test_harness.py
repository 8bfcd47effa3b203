"""The benchmark harness without a GPU: messages, parsing, schema, atomic writing, and a run with stand-in tools."""

import json
import os
import stat
from pathlib import Path

import pytest

from calibration import harness, toolchain
from calibration.clocks import summarise
from simulator.errors import CalibrationError, UnknownNameError

POINT = {"us": 2.0, "us_p10": 1.9, "us_p90": 2.2, "samples": 20}
SMI = """#!/bin/sh
case "$*" in
  *compute_cap*) echo 9.0;;
  *-lms*) echo '1980, 300.0, 100'; exec sleep 30;;
  *) echo 'Test GPU, 580.1, 81559, 345, 2619, 1980, 2619, 76.2, 700.0, 48';;
esac
"""


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def document(**changes: object) -> dict[str, object]:
    check = {"kernel": "k", "case": "c", "relative_error": 0.0, "limit": 0.01, "passed": True}
    base = {"schema": harness.SCHEMA, "device": "d", "versions": {"nvcc": "13"}, "checks": [check]}
    return {**base, "bandwidth": [dict(POINT)], **changes}


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(toolchain, "cuda_roots", lambda nvcc: [])
    monkeypatch.setattr(toolchain, "package_roots", list)
    which = toolchain.shutil.which
    monkeypatch.setattr(toolchain.shutil, "which", lambda n: None if n.startswith("/usr/local") else which(n))
    return folder


def stand_in_nvcc(folder: Path, program: str) -> None:
    """An nvcc whose every output is the shell script `program`."""
    script(folder, "payload", program)
    script(
        folder,
        "nvcc",
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'release 13.0, V13.0.88'; exit; }\n"
        f'while [ "$1" != -o ]; do shift; done\ncp {folder}/payload "$2"\n',
    )


def test_no_nvcc_is_one_clear_line_and_writes_nothing(bin_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "ops.json"
    with pytest.raises(CalibrationError, match=r"nvcc: not found.*CUDA toolkit"):
        harness.run_harness(out)
    assert not out.parent.exists()


def test_no_gpu_is_named(bin_dir: Path, tmp_path: Path) -> None:
    stand_in_nvcc(bin_dir, "#!/bin/sh\n")
    with pytest.raises(CalibrationError, match="nvidia-smi: not found"):
        harness.run_harness(tmp_path / "ops.json")
    script(bin_dir, "nvidia-smi", "#!/bin/sh\necho 'No devices were found'; exit 6\n")
    with pytest.raises(CalibrationError, match="no GPU answers: No devices were found"):
        harness.run_harness(tmp_path / "ops.json")


def test_a_gpu_the_kernels_do_not_fit_is_refused(bin_dir: Path, tmp_path: Path) -> None:
    stand_in_nvcc(bin_dir, "#!/bin/sh\n")
    script(bin_dir, "nvidia-smi", "#!/bin/sh\necho 8.0\n")
    with pytest.raises(CalibrationError, match=r"compute capability is 8\.0, accepted: 9\.0"):
        harness.run_harness(tmp_path / "ops.json")


def test_command_line_prints_one_line_and_exits_with_2(
    bin_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness.main([str(tmp_path / "ops.json")]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: nvcc") and text.count("\n") == 1


def test_unknown_program_lists_the_known(tmp_path: Path) -> None:
    words = r"unknown benchmark program 'decod' \(did you mean decode\?\); known: .*decode"
    with pytest.raises(UnknownNameError, match=words):
        harness.run_harness(tmp_path / "ops.json", only=["decod"])


def test_a_run_with_stand_in_tools_collects_every_table(
    bin_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = '{"table": "checks", "kernel": "k", "case": "c", "relative_error": 0, "limit": 0.01, "passed": true}'
    point = '{"table": "bandwidth", "what": "read", "us": 2, "us_p10": 1.9, "us_p90": 2.2, "samples": 20}'
    program = f"#!/bin/sh\ncase \"$*\" in *--check*) echo '{check}';; *) echo '{point}';; esac\n"
    stand_in_nvcc(bin_dir, program)
    script(bin_dir, "nvidia-smi", SMI)
    monkeypatch.setattr(harness, "run_libraries", lambda tools, quick: {"versions": [{"torch": "x"}]})
    out = harness.run_harness(tmp_path / "deep" / "ops.json", only=["memory", "layer"])
    result = json.loads(out.read_text())
    assert result["device"] == "Test GPU" and result["programs"] == ["memory", "layer"]
    assert result["versions"]["nvcc"] == "13.0.88" and result["versions"]["torch"] == "x"
    assert len(result["bandwidth"]) == 2 and len(result["checks"]) == 2
    assert [r["program"] for r in result["clocks_under_load"]] == ["memory", "layer"]
    assert os.listdir(out.parent) == ["ops.json"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("#!/bin/sh\necho 'decode.cu:7: out of memory' >&2; exit 1\n", "memory: exit status 1: decode.cu:7: out of"),
        ("#!/bin/sh\necho 'not json'\n", "memory: output line 1 is not a row: 'not json'"),
        ("#!/bin/sh\necho '[1]'\n", "memory: output line 1 is not a row"),
    ],
)
def test_a_failing_program_leaves_the_old_file_alone(bin_dir: Path, tmp_path: Path, program: str, message: str) -> None:
    stand_in_nvcc(bin_dir, program)
    script(bin_dir, "nvidia-smi", SMI)
    out = tmp_path / "ops.json"
    out.write_text("old")
    with pytest.raises(CalibrationError, match=message):
        harness.run_harness(out, only=["memory"])
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "ops.json"]


def test_a_failed_build_names_file_and_cause(bin_dir: Path, tmp_path: Path) -> None:
    text = "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho 'memory.cu(3): error: no' >&2; exit 1\n"
    script(bin_dir, "nvcc", text)
    script(bin_dir, "nvidia-smi", SMI)
    with pytest.raises(CalibrationError, match=r"memory.cu: nvcc failed: memory.cu\(3\): error: no"):
        harness.run_harness(tmp_path / "ops.json", only=["memory"])


def test_hopper_is_built_for_its_own_instructions(bin_dir: Path) -> None:
    stand_in_nvcc(bin_dir, "#!/bin/sh\n")
    script(bin_dir, "nvidia-smi", SMI)
    tools = toolchain.find_toolchain()
    assert tools.target_flag() == "-gencode=arch=compute_90a,code=sm_90a"


def test_device_line_is_read_and_unknown_values_are_none() -> None:
    row = harness.parse_device("NVIDIA X, 580.1, 81559, 345, 2619, 1980, 2619, [N/A], 700.00, 48")
    assert row["name"] == "NVIDIA X" and row["driver"] == "580.1"
    assert row["sm_clock_max_MHz"] == 1980.0 and row["power_W"] is None
    with pytest.raises(CalibrationError, match="2 values, expected 10"):
        harness.parse_device("NVIDIA X, 580.1")


def test_rows_are_sorted_into_tables() -> None:
    tables = harness.parse_rows("p", '{"table": "a", "x": 1}\n\n{"table": "b"}\n{"table": "a", "x": 2}\n')
    assert tables == {"a": [{"x": 1}, {"x": 2}], "b": [{}]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": "other/1"}, "schema is 'other/1'"),
        ({"device": ""}, "missing device"),
        ({"bandwidth": [{**POINT, "us": 0}]}, "times must be > 0"),
        ({"bandwidth": [{**POINT, "us": None}]}, "times must be > 0"),
        ({"bandwidth": [{**POINT, "us": 3.0}]}, "percentiles out of order"),
        ({"bandwidth": [{**POINT, "samples": 5}]}, "samples must be >= 20"),
        ({"checks": [{"kernel": "k", "case": "c", "passed": False}]}, "check failed: k c"),
        ({"checks": []}, "missing checks"),
    ],
)
def test_schema_problems_are_found(changes: dict[str, object], problem: str) -> None:
    assert harness.schema_problems(document()) == []
    assert any(problem in p for p in harness.schema_problems(document(**changes)))


def test_a_write_that_breaks_off_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "ops.json"
    target.write_text("old")

    def broken(source: object, destination: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(harness.os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        harness.write_atomically(target, "new")
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["ops.json"]


def test_clock_samples_of_an_idle_gpu_do_not_count() -> None:
    text = "345, 80.0, 0\n1980, 300.0, 90\n1500, 700.0, 100\nbroken\n1700, 650.0, 100\n"
    row = summarise(text)
    assert row == {"busy_samples": 3, "sm_clock_MHz": 1700, "sm_clock_min_MHz": 1500, "power_max_W": 700}
    assert summarise("")["sm_clock_MHz"] is None
