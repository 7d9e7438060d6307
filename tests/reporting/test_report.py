"""Laws of the report: it says what the files say, needs nothing but itself, and is the same bytes
whenever and wherever it is written."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from itertools import product

import pytest

from stages.report import main
from tests.chromium import browser
from tests.reporting.synthetic_run import make_rollout, make_tasks, small_params, write_run
from tests.tiny_run import fails, run_stage, set_root, tiny_params
from tracerl.models.tokenizer import character_tokenizer
from tracerl.reporting.charts import (
    Change,
    Series,
    change_chart,
    heat_map,
    histogram,
    interval_bar,
    line_chart,
    percent,
    ticks,
    won_lost_chart,
)
from tracerl.reporting.report import mode_descriptions, read_curve
from tracerl.reporting.rows import group_chart, order_chart, won_lost_charts
from tracerl.reporting.trace_viewer import build_trace, last_traces
from tracerl.settings.params import parse_params
from tracerl.store.catalog import connect
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.types import Rollout

WANTED = [
    "checkpoint",
    "benchmark",
    "remasking",
    "block_size",
    "num_problems",
    "accuracy",
    "ci_low",
    "ci_high",
    "tokens_per_step",
    "tokens_per_forward",
    "mean_length",
    "truncation_rate",
]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A synthetic run with the report written by the stage, as DVC runs it."""
    root = tmp_path_factory.mktemp("run")
    write_run(root, small_params())
    run_stage(root, "report")
    return root


@pytest.fixture(scope="module")
def page(run_folder):
    return (run_folder / "reports" / "report.html").read_text()


# The result table


def test_the_summary_has_exactly_the_wanted_columns_in_the_order_of_the_params(run_folder):
    rows = json.loads((run_folder / "reports" / "metrics" / "summary.json").read_text())["rows"]
    assert {tuple(sorted(row)) for row in rows} == {tuple(sorted(WANTED))}
    expected = [
        (one.checkpoint, task_set, mode, one.sampler.block_size)
        for one in small_params().evaluate.values()
        for task_set in one.tasks
        for mode in ("static", "dynamic")
    ]
    assert [
        (row["checkpoint"], row["benchmark"], row["remasking"], row["block_size"]) for row in rows
    ] == expected


def test_the_page_shows_every_row_of_the_summary_with_its_interval(run_folder, page):
    rows = json.loads((run_folder / "reports" / "metrics" / "summary.json").read_text())["rows"]
    for row in rows:
        assert (
            f"{100 * row['accuracy']:.1f}% [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]"
            in page
        )
    assert page.count('class="interval"') == len(rows)


# What the page holds


def test_the_page_has_charts_for_every_stage_and_traces_for_every_round(page):
    params = small_params()
    charts = re.findall(r'<svg class="chart"[^>]*aria-label="([^"]*)"', page)
    assert charts.count("base: loss") == 1
    assert [charts.count(f"sft@{name}: loss") for name in params.sft] == [1] * len(params.sft)
    assert len(charts) == 3 + 1 + len(params.sft) + 10 * len(params.rl)
    assert page.count('<article class="card trace">') == params.report.num_traces * len(params.rl)


def test_the_page_says_how_each_mode_samples(page):
    assert "<dt>static</dt><dd>greedy (top_k 1); order static, tokens per step 1;" in page
    assert "<dt>dynamic</dt><dd>drawn at temperature 1; order dynamic, threshold 0.9;" in page


def test_modes_name_every_way_they_sample_and_how_often():
    data = tiny_params()
    for name, temperature in (("sft-short", 0.0), ("rl-short", 0.5)):
        sampler = {**data["evaluate"][name]["sampler"], "temperature": temperature, "top_p": 1.0}
        data["evaluate"][name]["sampler"] = sampler
    data["evaluate"] = {name: data["evaluate"][name] for name in ("sft-short", "rl-short")}
    data["evaluation"].update(num_samples=3, samples={"sums-short": 20})
    data["evaluation"]["modes"] = {
        "one": {"order": {"kind": "sequential"}, "block_size": 4, "steps_per_block": 2},
        "two": {"num_samples": 1, "temperature": 0.0, "order": {"kind": "entropy", "bound": 0.1}},
    }
    assert mode_descriptions(parse_params(data, "")) == [
        (
            "one",
            "greedy (temperature 0); order sequential, tokens per step 2; "
            "drawn at temperature 0.5; order sequential, tokens per step 2; "
            "responses to a problem: 3; to one of sums-short: 20",
        ),
        (
            "two",
            "greedy (temperature 0); order entropy, bound 0.1; responses to a problem: 1",
        ),
    ]


def assert_well_formed(page):
    text = re.sub(r"<(meta|link)[^>]*>|<!doctype html>", "", page)
    opened: list[str] = []
    for closing, name, empty in re.findall(
        r"<(/?)([a-z0-9]+)[^>]*?(/?)>", re.sub(r"<style>.*</style>", "", text, flags=re.S)
    ):
        if closing:
            assert opened.pop() == name
        elif not empty:
            opened.append(name)
    assert opened == []


def test_the_page_is_well_formed(page):
    assert_well_formed(page)


def test_the_page_refers_to_nothing_outside_itself(page):
    addresses = re.findall(
        r"""(?:src|srcset|href|action|data|poster)\s*=\s*["']([^"']*)["']|url\(([^)]*)\)|@import\s*([^;]*)""",
        page,
    )
    beside = {"traces.html", "validation/rollouts.html", "validation/tasks.html"}
    assert {
        address for match in addresses for address in match if address and address[0] != "#"
    } == {"data:,", *beside}
    assert "//" not in re.sub(r"<!--.*?-->", "", page)
    assert "<script" not in page


def test_the_same_run_gives_the_same_bytes_in_another_place_and_process(
    run_folder, tmp_path, monkeypatch
):
    write_run(tmp_path, small_params())
    set_root(tmp_path, monkeypatch)
    for _ in range(2):
        main()
        for name in ("report.html", "traces.html", "metrics/summary.json"):
            assert (tmp_path / "reports" / name).read_bytes() == (
                run_folder / "reports" / name
            ).read_bytes()


@pytest.mark.parametrize(
    "missing",
    ["metrics/evaluate/rl-short.json", "curves/rl@short-held-out.tsv", "metrics/base.json"],
)
def test_a_missing_input_is_named_and_nothing_is_written(missing, run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path, dirs_exist_ok=True)
    for name in (missing, "report.html", "metrics/summary.json"):
        (tmp_path / "reports" / name).unlink()
    assert missing in fails(tmp_path, "report")
    assert not (tmp_path / "reports" / "report.html").exists()
    assert not (tmp_path / "reports" / "metrics" / "summary.json").exists()


# Trajectories


def trace_of(rollout: Rollout):
    row = rollout_table([rollout]).to_pylist()[0]
    return build_trace(
        {**row, "prompt": rollout.task.prompt, "answer": rollout.task.answer}, character_tokenizer()
    )


def rollout_of(text: str, block_size: int = 4) -> Rollout:
    return make_rollout(make_tasks()[0], 0, "rl@short", 1, text, character_tokenizer(), block_size)


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_blocks_lie_on_the_absolute_grid_and_hold_the_whole_response(block_size):
    rollout = rollout_of("11;16;#16", block_size)
    num_prompt, trace = len(rollout.trajectory.prompt_ids), trace_of(rollout)
    tokens = [token for block in trace.blocks for token in block]
    assert {len(block) for block in trace.blocks} == {block_size}
    assert [token.part for token in tokens].count("prompt") == num_prompt % block_size
    assert [
        token.step for token in tokens if token.part != "prompt"
    ] == rollout.trajectory.step_map.tolist()
    assert "".join(token.text for token in tokens if token.part == "response") == "11;16;#16∎"


def test_frames_reveal_each_token_at_its_step_and_end_with_the_response():
    rollout = rollout_of("11;16;#16")
    trace, steps = trace_of(rollout), rollout.trajectory.step_map
    final = "11;16;#16∎"
    assert [frame.num_new for frame in trace.frames] == [
        int((steps == s).sum()) for s in range(1, rollout.trajectory.num_steps + 1)
    ]
    for frame in trace.frames:
        shown = "".join(text for block in frame.blocks for text, _ in block)
        assert shown == "".join(
            c if step <= frame.step else "·" for c, step in zip(final, steps, strict=True)
        )
        new = "".join(text for block in frame.blocks for text, is_new in block if is_new)
        assert new == "".join(c for c, step in zip(final, steps, strict=True) if step == frame.step)


def test_tokens_after_the_end_and_positions_never_reached_are_told_apart():
    rollout = rollout_of("16")
    ids, steps = rollout.trajectory.response_ids.copy(), rollout.trajectory.step_map.copy()
    ids[-1], steps[-1] = 0, 0
    trace = trace_of(
        replace(
            rollout,
            trajectory=replace(rollout.trajectory, response_ids=ids, step_map=steps, num_tokens=2),
        )
    )
    last = trace.blocks[-1][-1]
    assert (last.text, last.part, last.step) == ("·", "after", 0)
    assert "never reached" in last.detail
    assert "".join(text for block in trace.frames[-1].blocks for text, _ in block).endswith("·")


def test_traces_come_from_the_last_iteration_and_show_right_and_wrong(run_folder):
    connection, tokenizer = connect(run_folder), character_tokenizer()
    traces = last_traces(connection, tokenizer, "rl@short", 4)
    assert [trace.verdict for trace in traces] == ["correct", "wrong", "correct", "wrong"]
    assert {trace.rollout_id.split("/")[1] for trace in traces} == {"00002"}
    assert len({trace.rollout_id for trace in traces}) == 4
    assert [t.rollout_id for t in last_traces(connection, tokenizer, "rl@short", 2)] == [
        t.rollout_id for t in traces[:2]
    ]
    assert last_traces(connection, tokenizer, "rl@none", 2) == []


def test_text_of_a_model_cannot_become_markup(tmp_path):
    write_run(tmp_path, small_params(1))
    (tmp_path / "data" / "tasks" / "manifest.json").unlink()
    task = replace(make_tasks()[0], prompt="</h4><script>1</script>", answer="<b>&")
    write_tasks(tmp_path / "data" / "tasks" / "mixed.parquet", [task])
    rollout = make_rollout(task, 0, "rl@short", 3, "<img>&\"'\n", character_tokenizer())
    write_rollouts(
        tmp_path / "data" / "rollouts" / "rl@short" / "iter-00003.parquet", rollout_table([rollout])
    )
    run_stage(tmp_path, "report")
    page = (tmp_path / "reports" / "report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;/h4&gt;&lt;script&gt;1" in page
    assert_well_formed(page)


# Charts and curves


@pytest.mark.parametrize(
    ("low", "high", "least", "expected"),
    [
        (0.0, 1.0, 0.0, [0, 0.25, 0.5, 0.75, 1]),
        (0, 12, 1.0, [0, 5, 10, 15]),
        (0, 1, 1.0, [0, 1]),
        (7e-5, 4e-4, 0.0, [0, 1e-4, 2e-4, 3e-4, 4e-4]),
        (3.0, 3.0, 0.0, [1, 2, 3, 4, 5]),
        # A share that is 0 all the time is never below it.
        (
            0.0,
            0.0,
            0.0,
            [0, 0.25, 0.5, 0.75, 1],
        ),
    ],
)
def test_ticks_are_round_numbers_that_enclose_the_values(low, high, least, expected):
    assert ticks(low, high, 4, least) == expected


def test_a_line_passes_through_its_values_and_leaves_out_what_is_not_finite():
    svg = line_chart(
        "a < b",
        [Series(label="y", x=[0, 1, 2, 3], y=[0.0, float("nan"), 0.5, 1.0])],
        "step",
        percent,
    )
    points = re.search(r'<polyline[^>]*points="([^"]*)"', svg)
    assert points is not None
    places = [tuple(map(float, place.split(","))) for place in points[1].split()]
    assert len(places) == 3
    (left, bottom), (x, y), (right, top) = places
    assert (x - left) / (right - left) == pytest.approx(2 / 3, abs=1e-3)
    assert (bottom - y) / (bottom - top) == pytest.approx(0.5, abs=1e-2)
    assert "a &lt; b" in svg
    assert "100.0%" in svg


def test_charts_without_values_or_with_one_are_still_charts():
    assert "no values" in line_chart("t", [Series(label="y", x=[], y=[])], "step")
    assert "<circle" in line_chart("t", [Series(label="y", x=[1], y=[0.0])], "step")
    assert "1.0%" in change_chart("t", [Change(label="c", before=0.01, after=0.01)], percent)
    assert interval_bar(0.5, 0.25, 1.0).count("<line") == 2


def test_a_curve_with_only_a_heading_is_empty(tmp_path):
    (tmp_path / "base.tsv").write_text("step\tloss\n")
    assert read_curve(tmp_path / "base.tsv") == []


# Figures from the rows


def test_the_heat_map_gives_each_place_its_shares_of_steps(run_folder):
    chart = order_chart(connect(run_folder), "rl@short")
    shares = [
        float(share)
        for share in re.findall(r"place in the block \d+, step in the block \d+: ([0-9.]+)%", chart)
    ]
    steps = int(re.findall(r"step in the block (\d+):", chart)[-1])
    assert len(shares) == 4 * steps
    for place in range(4):
        assert sum(shares[place * steps : (place + 1) * steps]) == pytest.approx(100, abs=0.3)


def test_the_histogram_counts_groups_by_pass_rate(run_folder):
    """Of the four groups of an iteration three are half right and one is all right."""
    bars = re.findall(
        r"<title>(first|last) fifth[^,]*, (\d+): ([0-9.]+)%",
        group_chart(connect(run_folder), "rl@short"),
    )
    assert {(part, label): share for part, label, share in bars if float(share)} == {
        (part, label): share
        for part in ("first", "last")
        for label, share in (("50", "75.0"), ("100", "25.0"))
    }


def test_problems_won_and_lost_are_counted_against_the_nearest_evaluated_ancestor(tmp_path):
    params = small_params()
    tokenizer, tasks = character_tokenizer(), make_tasks()
    right = {"sft-short": [True, True, False, False], "rl-short": [True, False, True, True]}
    for name, verdicts in right.items():
        stage = f"evaluate@{name}/static"
        rows = [
            make_rollout(task, 0, stage, 0, task.solution if one else "1", tokenizer)
            for task, one in zip(tasks, verdicts, strict=True)
        ]
        write_rollouts(
            tmp_path / "data" / "evals" / name / "mixed-static.parquet", rollout_table(rows)
        )
    (chart,) = won_lost_charts(connect(tmp_path), params)
    assert "sft@short → rl@short, block size 4" in chart
    assert ("2 won" in chart, "1 lost" in chart, "+1" in chart) == (True, True, True)


def test_provenance_names_params_data_and_checkpoints(run_folder, page):
    assert hashlib.sha256((run_folder / "params.yaml").read_bytes()).hexdigest() in page
    assert (
        hashlib.sha256((run_folder / "data" / "tasks" / "manifest.json").read_bytes()).hexdigest()[
            :16
        ]
        in page
    )
    assert "0123456789abcdef" in page
    assert "num_played" in page


def test_the_page_says_which_data_sets_passed_and_what_was_warned_of(page):
    section = page.split('<section id="validation">')[1].split("</section>")[0]
    assert re.findall(r'<span class="(?:good|bad)">(\w+)<', section) == ["passed", "failed"]
    assert "no figure moved by more than 50%" in section
    assert 'href="validation/tasks.html"' in section


def test_charts_of_rows_without_values_are_still_charts():
    assert "no values" in heat_map("t", [], "x", "y")
    assert "no values" in histogram("t", ["0"], [], "x")
    assert "+0" in won_lost_chart("t", [("a < b", 0, 0)])
    assert "a &lt; b" in won_lost_chart("t", [("a < b", 0, 0)])


# The browser


def test_the_browser_check_sees_errors_and_requests(tmp_path):
    (tmp_path / "bad.html").write_text(
        '<img src="http://127.0.0.1:9/x.png"><script>console.error("seen"); nowhere()</script>'
    )
    with browser(tmp_path) as shown:
        shown.open((tmp_path / "bad.html").as_uri())
        assert "http://127.0.0.1:9/x.png" in shown.requests
        assert any("seen" in error for error in shown.errors)
        assert any("nowhere" in error for error in shown.errors)


def test_a_browser_shows_report_and_validation_in_both_themes_at_both_widths_and_prints_them(
    run_folder, tmp_path
):
    pages = [
        run_folder / "reports" / "report.html",
        run_folder / "reports" / "validation" / "rollouts.html",
    ]
    with browser(tmp_path) as shown:
        for path, (width, dark) in product(
            pages, [(1280, False), (1280, True), (390, False), (390, True)]
        ):
            shown.open(path.as_uri(), width, dark=dark)
            assert shown.run("document.documentElement.scrollWidth") <= width, (
                f"{path.name} is wider than {width} pixels"
            )
            background = shown.run("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(18, 21, 26)") is dark
            shown.press("Tab")
            assert shown.run("document.activeElement.tagName") == "A"
        shown.pdf(tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
        assert shown.errors == []
        assert shown.requests == []
