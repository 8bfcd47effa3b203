"""The self-test finds what is planted, makes it small, prints it as YAML and runs that again."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from simulator.cli.main import main
from simulator.engines import reference
from simulator.report.schemas import schema_for
from simulator.selftest import soak as soaking
from simulator.selftest.cases import TABLE, Case
from simulator.selftest.file import case_text, load_case
from simulator.selftest.shrink import shrunk
from simulator.selftest.trial import case_of, faults
from simulator.state import Limits

SEEDS = range(0, 500, 7)


def same(one: Case, other: Case) -> bool:
    return case_text(one) == case_text(other)


def test_a_case_comes_back_from_its_file(tmp_path: Path) -> None:
    for seed in SEEDS:
        path = tmp_path / f"{seed}.yaml"
        path.write_text(case_text(case_of(seed)))
        assert same(load_case(path), case_of(seed)), seed


def test_every_limit_is_drawn() -> None:
    """A limit that no row draws would be tried at one value only."""
    assert set(Limits._fields) - {"block_bits", "rule"} <= {name for name, _ in TABLE}  # those follow from others


def test_a_failure_becomes_as_small_as_it_can() -> None:
    """What fails here is a request of 5 tokens or more that is preempted never and arrives after another."""
    def fails(case: Case) -> bool:
        return any(output >= 5 and k > 0 for k, output in enumerate(case.output))

    large = next(case_of(seed) for seed in SEEDS if fails(case_of(seed)))
    small = shrunk(large, fails)
    assert small.output == (1, 5) and small.prompt == (1, 1) and small.arrival == (0, 0)
    assert small.replicas == 1 and small.until is None and small.limits.schedule_ahead == 0


def test_a_planted_bug_is_found_and_shrunk(interpreted: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                           capsys: Any) -> None:  # fmt: skip
    """SimPy forgets the launch time of the step when it wakes for the output: on some seed the engines differ."""
    right = reference.output_tick
    monkeypatch.setattr(reference, "output_tick", lambda rep: right(rep) + 1)
    seed = next(seed for seed in range(0, 100, 10) if faults(case_of(seed)))
    found = soaking.finding(seed, faults(case_of(seed)))
    path = tmp_path / "f.yaml"
    path.write_text(found.text)
    small = load_case(path)
    assert len(small.arrival) == 1 and small.output == (1,)
    assert main(["selftest", "--replay", str(path)]) == 1
    assert "reference: last" in capsys.readouterr().out
    monkeypatch.setattr(reference, "output_tick", right)
    assert main(["selftest", "--replay", str(path)]) == 0


def test_what_is_made_smaller_fails_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An invariant is broken where an answer has 5 tokens or more; whatever is smaller differs in an engine, which is
    another fault."""
    def both(case: Case, simpy: bool = True) -> list[str]:
        return ["3 blocks are conserved"] if max(case.output) >= 5 else ["reference: last", "reference: first"]

    monkeypatch.setattr(soaking, "faults", both)
    seed = next(seed for seed in SEEDS if max(case_of(seed).output) >= 5)
    found = soaking.finding(seed, both(case_of(seed)))
    (tmp_path / "f.yaml").write_text(found.text)
    assert found.faults == ["3 blocks are conserved"] and load_case(tmp_path / "f.yaml").output == (5,)


def test_the_command_counts_what_it_ran(capsys: Any) -> None:
    assert main(["selftest", "--cases", "130", "--minutes", "10", "--json"]) == 0
    out = capsys.readouterr().out
    jsonschema.validate(json.loads(out), schema_for("selftest"))
    assert '"compiled": 130' in out and '"simpy": 14' in out and '"findings": []' in out


def test_no_run_is_no_success(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(soaking, "soak", lambda *_: soaking.Soaked())
    assert main(["selftest", "--minutes", "0.5"]) == 2
    said = capsys.readouterr()
    assert "no run ended within 0.5 minutes" in said.err and said.out == ""


def count(pipe: Any, current: Any, first: int, step: int, most: int) -> None:
    pipe.send((100, 10))
    time.sleep(60)


def test_an_interrupted_soak_says_what_it_ran(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def told(so_far: soaking.Soaked) -> None:
        if so_far.compiled:
            raise KeyboardInterrupt

    monkeypatch.setattr(soaking, "_work", count)
    done = soaking.soak(0, None, 60.0, 1, told)
    assert (done.compiled, done.simpy) == (100, 10) and isinstance(done.stopped, KeyboardInterrupt)
    for stopped, code in ((KeyboardInterrupt(), 130), (SystemExit(143), 143)):
        monkeypatch.setattr(soaking, "soak", lambda *_, stopped=stopped: soaking.Soaked(100, 10, stopped=stopped))
        try:
            assert main(["selftest"]) == code
        except SystemExit as error:
            assert error.code == code
        assert "100 drawn runs from seed 0" in capsys.readouterr().out


def crash(pipe: Any, current: Any, first: int, step: int, count: int) -> None:
    if count > 3:
        current.value = first + 3 * step
        os._exit(7)
    pipe.send((count, 0))
    pipe.send(None)


def test_a_crash_is_a_finding_and_another_process_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten seeds the fourth of what is left ends the process: 53, then 57; the last two are tried."""
    monkeypatch.setattr(soaking, "_work", crash)
    done = soaking.soak(50, 10, 60.0, 1)
    found = done.findings
    assert [each.seed for each in found] == [53, 57] and done.compiled == 2
    assert found[0].faults == ["the process ended with 7"] and found[0].text == case_text(case_of(53))


def hang(pipe: Any, current: Any, first: int, step: int, count: int) -> None:
    if count < 10:
        pipe.send(None)
        return
    current.value = first + step
    signal.setitimer(signal.ITIMER_PROF, 0.2)
    while True:
        pass


def test_a_hang_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soaking, "_work", hang)
    found = soaking.soak(50, 10, 60.0, 1).findings
    assert [each.seed for each in found] == [51]
    assert found[0].faults == ["does not end in 120 s of computing"]


@pytest.mark.parametrize("change, fragment", [
    (("policy: ", "policy: no"), "accepted: static"), (("block_size: ", "block: "), "block"),
    (("block_size: ", "block_size: -"), "block_size"), (("  pick: [", "  pick: [1, "), "one length"),
    (("num_blocks: ", "num_blocks: x"), "num_blocks"),
])
def test_a_file_that_is_no_case_is_refused(change: tuple[str, str], fragment: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "c.yaml"
    text = case_text(replace(case_of(0), policy="chunked"))
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    assert main(["selftest", "--replay", str(path)]) == 2
    err = capsys.readouterr().err
    assert "c.yaml" in err and fragment in err and err.count("\n") == 1
