"""Best points and the heat map, from tables written by hand; and both commands end to end."""

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
import yaml
from sweep_cases import make

from simulator.cli.main import main
from simulator.errors import ConfigError, UnknownNameError
from simulator.report.schemas import schema_for
from simulator.sweep.row import COUNTS, NUMBERS, said_name
from simulator.sweep.show import (
    best_points,
    errors_table,
    folded_keys,
    grid_of,
    heat_keys,
    heat_map,
    load_table,
    point_means,
    save_heat_map,
    with_unit,
)

P99 = "ttft_s.p99"
TOKENS = "throughput.output_tokens_per_s"


def table(*rows: tuple[int, int, int, float | None, str | None]) -> pd.DataFrame:
    """Rows of (point, a, b, ttft_s.p99, error)."""
    frame = pd.DataFrame(rows, columns=["point", "a", "b", P99, "error"])
    return frame.assign(**{"replication": 0, "stability.verdict": "stable", P99: frame[P99].astype(float)})


def test_mean_and_standard_error_over_replications() -> None:
    frame = table((0, 1, 1, 2.0, None), (0, 1, 1, 4.0, None), (1, 2, 1, 5.0, None))
    means = point_means(frame, ["a", "b"], P99)
    assert means["mean"].tolist() == [3.0, 5.0]
    assert means["sem"][0] == 1.0  # sample deviation sqrt(2) over sqrt(2 replications)
    assert np.isnan(means["sem"][1])


def test_a_point_with_a_missing_replication_has_no_mean_and_comes_last() -> None:
    frame = table((0, 1, 1, 0.1, None), (0, 1, 1, None, None), (1, 2, 1, 9.0, None), (2, 3, 1, None, "boom"))
    means = point_means(frame, ["a", "b"], P99)
    assert best_points(means, P99, 3)["point"].tolist() == [1, 0, 2]
    assert means["failed"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("more", ["goodput.attained", "throughput.requests_per_s", "requests.completed"])
def test_latency_is_best_low_and_what_is_served_best_high(more: str) -> None:
    frame = table((0, 1, 1, 1.0, None), (1, 2, 1, 2.0, None)).assign(**{more: [20.0, 90.0]})
    assert best_points(point_means(frame, ["a"], P99), P99, 1)["point"].tolist() == [0]
    assert best_points(point_means(frame, ["a"], more), more, 1)["point"].tolist() == [1]


def test_the_grid_takes_the_best_over_the_other_keys() -> None:
    frame = table((0, 1, 7, 3.0, None), (1, 1, 7, 2.0, None), (2, 2, 7, 5.0, None), (3, 2, 8, None, "boom"))
    grid = grid_of(point_means(frame, ["a", "b"], P99), "a", "b", P99)
    assert grid.loc[7].tolist() == [2.0, 5.0]
    assert np.isnan(grid.loc[8].to_numpy()).all()


def test_unknown_names_list_the_known() -> None:
    means = point_means(table((0, 1, 1, 1.0, None)), ["a", "b"], P99)
    with pytest.raises(ConfigError, match="c is not swept; swept: a, b"):
        grid_of(means, "a", "c", P99)
    with pytest.raises(UnknownNameError, match=r"unknown metric 'speed'; known: .*ttft_s.p99"):
        point_means(table((0, 1, 1, 1.0, None)), ["a"], "speed")


def test_the_heat_map_shows_every_finite_cell(tmp_path: Path) -> None:
    grid = grid_of(point_means(table((0, 1, 1, 0.125, None), (1, 2, 1, 0.25, None), (2, 1, 2, None, "x")),
                               ["a", "b"], P99), "a", "b", P99)
    figure = heat_map(grid, P99)
    assert {text.get_text() for text in figure.axes[0].texts} == {"125 ms", "250 ms"}
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1", "2"]
    save_heat_map(figure, tmp_path / "a.png")
    save_heat_map(heat_map(grid, P99), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.png"]


def test_a_swept_rate_is_drawn_across() -> None:
    rate, first, second = "workload.arrivals.rate", "policy.max_num_seqs", "hardware.gpu"
    assert heat_keys([first, second, rate]) == (rate, first)
    assert heat_keys([first, second]) == (first, second)
    assert heat_keys([rate]) is None


def test_keys_of_one_value_are_not_folded() -> None:
    rows = table((0, 1, 1, 1.0, None), (1, 2, 1, 2.0, None)).assign(c=[3, 4], d=[5, 5])
    assert folded_keys(point_means(rows, ["a", "b", "c", "d"], P99), "a", "b") == ["c"]


def test_folded_keys_are_named_on_the_screen_and_in_the_picture(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **_: drawn.append(
        " ".join(figure.get_suptitle().split())) or Path(path).touch())
    monkeypatch.setattr("simulator.sweep.page.write_page", lambda *_: None)  # writes it as SVG too
    monkeypatch.setenv("COLUMNS", "200")
    keys = {"policy.max_num_seqs": [2, 64], "policy.max_num_batched_tokens": [256, 512],
            "workload.arrivals.rate": [2, 8]}
    out = str(tmp_path / "out")
    assert main(["sweep", write(tmp_path, [{"grid": keys}]), "--out", out, "--jobs", "1"]) == 0
    capsys.readouterr()
    assert main(["sweep", "show", out]) == 0
    says = "TTFT p99, best over max_num_seqs"
    told = " ".join(capsys.readouterr().out.split())
    assert f"{says}: max_num_batched_tokens down, rate [1/s] across" in told
    assert drawn == [says]


def test_numbers_of_a_heat_map_are_those_of_the_table() -> None:
    """206 ms is not 0.206 in the one and 206 ms in the other; a thousand has its comma in both."""
    rows = table((0, 1, 1, 0.206, None), (1, 2, 1, 0.3, None)).assign(**{TOKENS: [1968.2, 96]})
    for metric, shown in ((P99, "206 ms"), (TOKENS, "1,968")):
        means = point_means(rows, ["a", "b"], metric)
        figure = heat_map(grid_of(means, "a", "b", metric), metric)
        assert shown in [text.get_text() for text in figure.axes[0].texts]
        assert with_unit(metric, means["mean"][0]) == shown


def test_every_metric_has_a_name_to_say() -> None:
    said = [said_name(metric) for metric in (*COUNTS, *NUMBERS)]
    assert len(set(said)) == len(said) and not any("_" in name or "." in name for name in said)
    assert said_name("queue_s.p99") == "queue time p99" and said_name("requests.preemptions") == "preemptions"


def test_errors_are_listed() -> None:
    assert errors_table(table((0, 1, 1, 1.0, None))) is None
    listed = errors_table(table((0, 1, 1, None, "[bold]boom")))
    assert listed is not None and listed.row_count == 1


def write(folder: Path, axes: list[dict[str, Any]]) -> str:
    """A sweep file."""
    file = folder / "s.yaml"
    file.write_text(yaml.safe_dump(make(axes).model_dump(mode="json", exclude_none=True)))
    return str(file)


def test_sweep_and_show_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, [{"grid": {"policy.max_num_seqs": [2, 64, 0], "workload.arrivals.rate": [2, 8]}}])
    out = str(tmp_path / "out")
    assert main(["sweep", file, "--out", out, "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert " ".join(captured.err.split()) == (f"6 points, 6 rows, 2 failed (see the column error); results in {out}; "
                                              f"see them with servecast sweep show {out}")
    assert main(["sweep", "show", out, "--top", "1"]) == 0
    captured = capsys.readouterr()
    frame = load_table(out)
    best = frame.loc[frame[P99].idxmin()]
    shown = [line.split() for line in captured.out.splitlines()]
    expected = [str(best["point"]), str(best["policy.max_num_seqs"])]
    assert expected == next(words[:2] for words in shown if words[0].isdigit())
    assert "policy.max_num_seqs must be >= 1, got 0" in captured.err
    assert (tmp_path / "out" / "heatmap.png").exists()
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["points"] == 6


def test_what_is_shown_is_there_as_json_and_keeps_to_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six points of which two fail: the numbers are those of the table of rows, the grid has null where they failed."""
    file = write(tmp_path, [{"grid": {"policy.max_num_seqs": [2, 64, 0], "workload.arrivals.rate": [2, 8]}}])
    out = str(tmp_path / "out")
    assert main(["sweep", file, "--out", out, "--jobs", "1"]) == 0
    capsys.readouterr()
    assert main(["sweep", "show", out, "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data == json.loads((tmp_path / "out" / "sweep.json").read_text())
    jsonschema.Draft202012Validator(schema_for("sweep")).validate(data)
    frame = load_table(out)
    assert (data["points"], data["rows"], data["failed"], data["complete"]) == (6, 6, 2, True)
    assert sum(data["verdicts"].values()) == 6 and data["verdicts"]["failed"] == 2
    lowest = frame[P99].min()
    assert data["top"][0]["mean"] == lowest == min(v for line in data["grid"]["values"] for v in line if v is not None)
    where = data["top"][0]["values"]
    grid = data["grid"]
    column, line = (grid[name].index(where[grid[key]]) for name, key in (("columns", "across"), ("lines", "down")))
    assert grid["values"][line][column] == lowest
    assert grid["values"][grid["lines"].index(0)] == [None, None]
    assert [error["point"] for error in data["errors"]] == frame[frame["error"].notna()]["point"].tolist()


@pytest.mark.parametrize(("more", "says"), [
    (["--jobs", "2", "--dask", "tcp://x:1"], "--jobs has no effect with --dask"),
    (["--jobs", "0"], "--jobs"),
])
def test_bad_options_are_one_line_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                    more: list[str], says: str) -> None:
    file = write(tmp_path, [{"grid": {"policy.max_num_seqs": [2]}}])
    assert main(["sweep", "run", file, "--out", str(tmp_path / "out"), *more]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_show_of_a_folder_without_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "show", str(tmp_path)]) == 2
    assert "holds no sweep" in capsys.readouterr().err


def many(points: int, replications: int = 2) -> pd.DataFrame:
    """Rows of a sweep over a square of two keys; the last replication of every tenth point is overloaded."""
    point = np.repeat(np.arange(points), replications)
    last = np.tile(np.arange(replications) == replications - 1, points)
    verdict = np.where((point % 10 == 0) & last, "overloaded", "stable")
    return pd.DataFrame({"point": point, "replication": np.tile(np.arange(replications), points), "x": point % 317,
                         "y": point // 317, "ttft_s.p99": point * 1.0, "error": None, "stability.verdict": verdict})


def test_a_hundred_thousand_points_are_shown_in_seconds() -> None:
    started = time.process_time()
    means = point_means(many(100_000), ["x", "y"], "ttft_s.p99")
    grid = grid_of(means, "x", "y", "ttft_s.p99")
    figure = heat_map(grid, "ttft_s.p99")
    assert time.process_time() - started < 10
    assert means["verdict"].tolist()[:11] == ["overloaded", *["stable"] * 9, "overloaded"]
    assert grid.shape == (316, 317) and len(figure.axes[0].get_xticks()) <= 40


def test_a_heat_map_of_too_many_cells_is_refused_before_it_is_made() -> None:
    means = point_means(many(2_000, 1).assign(x=np.arange(2_000), y=np.arange(2_000)), ["x", "y"], "ttft_s.p99")
    with pytest.raises(ConfigError, match=r"--keys x,y: a heat map of 2,000 x 2,000 cells; accepted"):
        grid_of(means, "x", "y", "ttft_s.p99")


def test_the_word_for_a_point_is_the_banner_of_its_worst_replication() -> None:
    """A stable backlog may still reject or miss its targets; sweeps written before have the backlog's word alone."""
    frame = pd.DataFrame({"point": [0, 0, 1, 1], "replication": [0, 1, 0, 1], "key": [1, 1, 2, 2], "error": None,
                          P99: [0.1, 0.2, 0.1, 0.1], "stability.verdict": "stable",
                          "banner.verdict": ["stable", "rejecting", "missing its targets", "undecided"]})
    assert point_means(frame, ["key"], P99)["verdict"].tolist() == ["rejecting", "missing its targets"]
    before = frame.drop(columns="banner.verdict")
    assert point_means(before, ["key"], P99)["verdict"].tolist() == ["stable", "stable"]
