"""Names from files, of scenarios, classes and traces, are text on the page: a browser runs nothing of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from simulator.cli.main import main

HOSTILE = "<img src=x onerror=document.body.dataset.pwned=1>"
SCRIPT = "<script>document.body.dataset.pwned=1</script>"


def opened(page: Path, profile: Path) -> str:
    """The page as a browser has it once its scripts have run."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium on this machine")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
               "--virtual-time-budget=3000", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


def test_no_script_in_a_name_is_run(tmp_path: Path) -> None:
    trace = tmp_path / f"{HOSTILE}.csv"
    trace.write_text(f'arrival_s,prompt_tokens,output_tokens,class\n0,5,5,"{HOSTILE}"\n1,5,5,"{SCRIPT}"\n')
    (tmp_path / "s.yaml").write_text(f"name: '{HOSTILE}{SCRIPT}'\ndescription: '{SCRIPT}'\n"
                                     f"workload: {{trace: '{trace.name}'}}\nhardware: unit\n")
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "s.yaml"), "--engine", "reference", "-q", "--out", str(out)]) == 0
    seen = opened(out / "report.html", tmp_path / "profile")
    assert "onerror=document.body" in seen  # the name is on the page
    assert "data-pwned" not in seen
    bad = tmp_path / "bad.html"
    bad.write_text(f"<body>{HOSTILE}{SCRIPT}</body>")
    assert "data-pwned" in opened(bad, tmp_path / "profile")  # an unescaped one would have run
