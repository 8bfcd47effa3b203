"""Published layouts and what people's own exports look like: hand-written files, and the public samples."""

import json
from pathlib import Path

import numpy as np
import pytest

from simulator import scenario_from, simulate
from simulator.errors import ConfigError, TraceError
from simulator.workload import Trace, load_trace, open_columns, save_columns, superpose
from simulator.workload.load import load_lengths

HERE = Path(__file__).parent / "traces"
MS = 10**6
FAILED = "failed request (error)"

OURS = {
    # file: format, arrivals [ms], prompts, outputs, dropped
    "openai_usage.jsonl": ("openai", [0, 2000], [812, 31], [40, 7], {FAILED: 1}),
    "bailian.jsonl": ("bailian", [2000, 3500, 6000], [33, 16, 64], [5, 6, 7], {}),
    "aiperf.jsonl": ("aiperf", [0, 500], [551, 550], [90, 100], {"warm-up request": 1, "cancelled request": 1}),
    "inference_perf.json": ("inference_perf", [0, 250], [22, 20], [4, 3], {"failed request (0 output tokens)": 1}),
    "litellm.csv": ("litellm", [0, 1250], [41, 1812], [3, 12], {"failed request (0 output tokens)": 1}),
    "aibrix.jsonl": ("aibrix", [4000, 4500, 4500], [9, 8, 7], [2, 3, 1], {}),
    "semicolon.csv": ("servecast", [500, 1250], [1024, 120], [20, 30], {}),
}


@pytest.mark.parametrize("name", OURS)
def test_file_is_read_as_its_writer_meant_it(name: str) -> None:
    layout, arrivals, prompts, outputs, dropped = OURS[name]
    trace = load_trace(HERE / name)
    assert trace.meta.format == layout
    assert trace.arrival_ns.tolist() == [each * MS for each in arrivals]
    assert (trace.prompt.tolist(), trace.output.tolist()) == (prompts, outputs)
    assert trace.meta.rows_dropped == dropped
    assert trace.meta.rows_read == len(trace) + sum(dropped.values())


def test_cached_tokens_of_openai_usage_and_rows_without_that_detail() -> None:
    assert load_trace(HERE / "openai_usage.jsonl").cached.tolist() == [512, 0]


def test_dotted_names_reach_any_nested_field_and_dots_in_a_key_come_first(tmp_path: Path) -> None:
    rows = [{"at": {"s": time}, "n": {"in": {"tokens": count}}, "a.b": count + 1} for time, count in ((1.5, 3), (2, 5))]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    columns = {"arrival": "at.s", "prompt": "n.in.tokens", "output": "a.b"}
    trace = load_trace(path, columns=columns, time_unit="s")
    assert trace.arrival_ns.tolist() == [1_500 * MS, 2_000 * MS]
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([3, 5], [4, 6])


def test_whole_mooncake_times_are_milliseconds_and_those_with_a_fraction_seconds(tmp_path: Path) -> None:
    text = '{{"timestamp": {}, "input_length": 521, "output_length": 132}}\n'
    path = tmp_path / "t.jsonl"
    path.write_text(text.format("61.114") + text.format("62.5"))
    assert load_trace(path).arrival_ns.tolist() == [61_114 * MS, 62_500 * MS]
    assert load_trace(path, time_unit="ms").arrival_ns.tolist() == [61_114_000, 62_500_000]
    path.write_text(text.format("61114") + text.format("62500"))
    assert load_trace(path).arrival_ns.tolist() == [61_114 * MS, 62_500 * MS]


@pytest.mark.parametrize("name, prompts", [("append_result.json", [[10, 20], [40, 30]]),
                                           ("guidellm.json", [[100], [61, 60]])])
def test_several_benchmark_results_in_a_file_are_never_mixed(name: str, prompts: list[list[int]]) -> None:
    with pytest.raises(TraceError, match=r"2 benchmark results.*result: 1.*--where result=1"):
        load_trace(HERE / name)
    for number, wanted in enumerate(prompts, start=1):
        trace = load_trace(HERE / name, where={"result": number})
        assert trace.prompt.tolist() == wanted
        assert trace.arrival_ns[0] == 0


class TestWithoutArrivalTimes:
    def scenario(self, load: str) -> dict[str, object]:
        width = {} if load == "open" else {"width": 2}
        return {"workload": {"trace": str(HERE / "no_times.json")}, "load": {"kind": load, **width}, "hardware": "unit"}

    def test_an_open_load_is_refused_with_what_would_work(self) -> None:
        with pytest.raises(TraceError, match=r"no_times.json: no column for arrival times; .*closed"):
            simulate(scenario_from(self.scenario("open")), "reference")

    @pytest.mark.parametrize("load", ["closed", "grouped"])
    def test_closed_and_grouped_loads_replay_it(self, load: str) -> None:
        result = simulate(scenario_from(self.scenario(load)), "reference")
        assert sorted(result.requests.done.tolist()) == [4, 5]
        assert result.trace.meta.rows_dropped == {"failed request (0 output tokens)": 1}

    def test_options_of_time_have_no_effect_and_are_refused(self) -> None:
        for option in ({"start_s": 1.0}, {"rate_scale": 2.0}, {"time_unit": "s"}):
            with pytest.raises(ConfigError, match="no effect on a trace without arrival times"):
                load_trace(HERE / "no_times.json", **option)  # type: ignore[arg-type]

    def test_its_lengths_can_be_drawn(self) -> None:
        assert load_lengths(HERE / "no_times.json").prompt.tolist() == [10, 20]


class TestConversationsAndPrefixes:
    def trace(self) -> Trace:
        return load_trace(HERE / "bailian.jsonl")

    def test_chats_are_joined_to_sessions_and_hashes_keep_their_block_size(self) -> None:
        extras = self.trace().extras
        assert extras.session is not None and extras.session.tolist() == [0, 1, 0]
        assert extras.turn is not None and extras.turn.tolist() == [1, 1, 2]
        assert extras.hash_block == 16
        assert [extras.hashes(row).tolist() for row in range(3)] == [[3, 4, 5], [3], [3, 4, 5, 9]]

    def test_they_follow_their_rows_through_windows_and_sorting(self) -> None:
        late = load_trace(HERE / "bailian.jsonl", start_s=1.0)
        assert [late.extras.hashes(row).tolist() for row in range(2)] == [[3], [3, 4, 5, 9]]
        assert late.extras.session is not None and late.extras.session.tolist() == [1, 0]
        few = load_trace(HERE / "bailian.jsonl", where={"turn": 2})
        assert few.extras.hashes(0).tolist() == [3, 4, 5, 9]

    def test_copies_are_other_people(self) -> None:
        for double in (superpose(self.trace(), 2, 1.0), superpose(self.trace(), 2)):
            session = double.extras.session
            assert session is not None and len(set(session.tolist())) == 4
            first = {int(s): double.extras.hashes(row)[0] for row, s in enumerate(session)}
            assert len(set(first.values())) == 2, "the two conversations of a copy share their first block"
            for row in range(6):
                same = self.trace().prompt.tolist().index(double.prompt[row])
                assert np.all(np.diff(double.extras.hashes(row)) == np.diff(self.trace().extras.hashes(same)))

    def test_saved_columns_keep_them(self, tmp_path: Path) -> None:
        back = open_columns(save_columns(self.trace(), tmp_path / "saved"))
        assert back.meta == self.trace().meta
        assert back.extras.hashes(2).tolist() == [3, 4, 5, 9]

    def test_reports_say_what_is_not_simulated(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        head = "TIMESTAMP,ContextTokens,GeneratedTokens,NumImages\n"
        path.write_text(head + "2025-01-01 00:00:00,9,1,0\n2025-01-01 00:00:01,9,1,2\n")
        assert load_trace(path).meta.account == "2 rows read; read but not simulated: images"
        path.write_text(head + "2025-01-01 00:00:00,9,1,0\n")
        assert load_trace(path).meta.account == "1 row read"


def test_a_comma_is_a_thousands_separator_only_where_it_can_be_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('arrival_s,prompt_tokens,output_tokens\n0,"1,024","12,345"\n1,"2,048,576",3\n')
    trace = load_trace(path)
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([1024, 2_048_576], [12_345, 3])
    for wrong in ("1,02", "1,0245", ",024", "1.024,5"):
        path.write_text(f'arrival_s,prompt_tokens,output_tokens\n0,"{wrong}",5\n')
        with pytest.raises(TraceError, match=r"prompt .* must be a whole number"):
            load_trace(path)
    path.write_text('arrival_s,prompt_tokens,output_tokens\n"1,024",7,5\n')
    with pytest.raises(TraceError, match=r"arrival .* must be a number in s"):
        load_trace(path)


PUBLIC = {
    # file of the samples: requests, rate [requests/s] (None: no span), first prompt and output
    "02_burstgpt_v1": (3, 2 / 113, 472, 18),
    "03_burstgpt_v2": (3, 2 / 82, 906, 446),
    "04_mooncake": (3, 2 / 3, 6758, 500),
    "07_vllm_bench_detailed": (6, 5.0, 100, 50),
    "12_inference_perf_per_request": (6, 2.5, 591, 140),
    "14_aiperf_profile_export": (5, 10.0, 550, 100),
    "16_splitwise": (2, 1 / 4.314579, 374, 44),
    "17_vidur": (3, 2 / 4.541877, 374, 44),
    "18_llmservingsim": (2, 1 / 0.9, 1472, 133),
    "19_blis_v2": (6, 20.0, 64, 16),
    "20_azure2024": (3, 2 / 1.007405, 2162, 5),
    "21_azure_mm": (2, 1 / 3.5, 900, 120),
    "22_aibrix": (3, 4.0, 100, 20),
    "23_guidellm": (1, None, 512, 128),
    "24_openai_log": (4, 1.0, 100, 20),
    "25_litellm_spend": (2, 1 / 3, 812, 120),
    "26_langfuse": (2, 1 / 1.377, 812, 120),
    "28_mooncake_seconds_sorted_float": (2, 1 / 1.386, 521, 132),
    "30_thousands": (2, 1.0, 1024, 20),
}
REFUSED = {
    "01_sharegpt": "without token counts",
    "05_aiperf_mooncake_multiturn": "AIPerf sessions.*give every turn",
    "06_bailian": r"data row 12 \(line 12\): unreadable row",  # the sample is cut within its 12th line
    "09_vllm_bench_append": "2 benchmark results.*choose one",
    "10_vllm_bench_summary": "summary without its requests.*--save-detailed",
    "13_genai_perf_profile_export": "no token counts.*aiperf",
    "15_lmcache_agentic": "message texts.*count each turn",
    "29_excel_semicolon": "say the unit of column 'arrival'",
}
UNTIMED = {"08_vllm_bench_detailed_no_start": 6, "11_sglang_bench": 6, "27_llmperf_individual": 3}


class TestPublicSamples:
    """A few lines of each published layout; the numbers are those that stand in the files."""

    @pytest.fixture
    def folder(self, data_dir: Path) -> Path:
        folder = data_dir / "cases" / "traces"
        if not folder.is_dir():
            pytest.skip(f"no sample traces under {data_dir}")
        return folder

    def sample(self, folder: Path, stem: str) -> Path:
        return next(folder.glob(f"{stem}.*"))

    def test_every_sample_is_here(self, folder: Path) -> None:
        stems = {path.stem for path in folder.iterdir() if path.name[:2].isdigit()}
        assert stems <= {*PUBLIC, *REFUSED, *UNTIMED}

    @pytest.mark.parametrize("stem", PUBLIC)
    def test_read_rightly(self, folder: Path, stem: str) -> None:
        count, rate, prompt, output = PUBLIC[stem]
        trace = load_trace(self.sample(folder, stem))
        assert (len(trace), trace.prompt[0], trace.output[0]) == (count, prompt, output)
        if rate is not None:
            assert (count - 1) / (trace.span_ns / 1e9) == pytest.approx(rate, rel=1e-6)

    @pytest.mark.parametrize("stem", REFUSED)
    def test_refused_by_name_with_what_to_do(self, folder: Path, stem: str) -> None:
        with pytest.raises((TraceError, ConfigError), match=REFUSED[stem]) as caught:
            load_trace(self.sample(folder, stem))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600

    @pytest.mark.parametrize("stem", UNTIMED)
    def test_read_for_closed_loads(self, folder: Path, stem: str) -> None:
        trace = load_trace(self.sample(folder, stem))
        assert len(trace) == UNTIMED[stem] and "closed" in trace.meta.untimed

    def test_what_makes_the_refused_ones_readable(self, folder: Path) -> None:
        assert len(load_trace(self.sample(folder, "06_bailian"), bad_rows="drop")) == 11
        assert len(load_trace(self.sample(folder, "09_vllm_bench_append"), where={"result": 2})) == 6
        excel = load_trace(self.sample(folder, "29_excel_semicolon"), time_unit="s")
        assert excel.arrival_ns.tolist() == [500 * MS, 1500 * MS]
