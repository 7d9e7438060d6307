"""Laws of the trace viewer: it holds what the rows hold, plays them by keyboard alone, and neither
runs nor asks for anything else."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.chromium import Page, browser
from tests.reporting.synthetic_run import long_responses, make_rollout, make_rollouts, make_tasks
from tracerl.cli import main
from tracerl.errors import DataError
from tracerl.models.tokenizer import character_tokenizer
from tracerl.reporting.trace_viewer import render_viewer, select_responses
from tracerl.store.catalog import connect
from tracerl.store.files import rollout_table, write_rollouts, write_tasks


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Two iterations of rollouts of a round."""
    root = tmp_path_factory.mktemp("run")
    write_tasks(root / "data" / "tasks" / "mixed.parquet", make_tasks())
    for iteration in (1, 2):
        path = root / "data" / "rollouts" / "rl@short" / f"iter-{iteration:05d}.parquet"
        write_rollouts(path, rollout_table(make_rollouts("rl@short", iteration)))
    (root / "data" / "checkpoints" / "base").mkdir(parents=True)
    character_tokenizer().save(root / "data" / "checkpoints" / "base")
    return root


@pytest.fixture(scope="module")
def page_file(run_folder):
    """The page of `tracerl trace`, before and after."""
    out = run_folder / "trace.html"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "trace",
                "iteration = 2",
                "--against",
                "iteration = 1",
                "--root",
                str(run_folder),
                "--out",
                str(out),
            ]
        )
    assert not ended.value.code
    return out


def data_of(page: str):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_the_page_holds_every_token_step_and_probability(run_folder):
    responses = select_responses(connect(run_folder), "iteration = 2", None, 200)
    data = data_of(render_viewer(responses, character_tokenizer(), "iteration = 2"))
    assert len(data["responses"]) == len(make_rollouts("rl@short", 2)) == 8
    expected = {rollout.rollout_id: rollout for rollout in make_rollouts("rl@short", 2)}
    for one in data["responses"]:
        trajectory = expected[one["rollout_id"]].trajectory
        kinds = {"ids": "<u4", "steps": "<u4", "confidence": "u1"}
        ids, steps, confidence = (
            np.frombuffer(base64.b64decode(one[name]), kind) for name, kind in kinds.items()
        )
        assert steps.tolist() == trajectory.step_map.tolist()
        assert confidence.tolist() == [
            round(100 * float(p)) for p in np.exp(trajectory.logprobs.astype(np.float64))
        ]
        text = "".join(data["texts"][i] for i in ids[: trajectory.num_tokens])
        assert text == expected[one["rollout_id"]].text + "∎"
        assert len(one["tail"]) == len(trajectory.prompt_ids) % 4


def test_a_response_is_shown_beside_the_one_to_the_same_problem_before(run_folder):
    pairs = select_responses(
        connect(run_folder), "iteration = 2", "iteration = 1 and sample_index = 0", 200
    )
    assert {pair.row["sample_index"]: pair.before is not None for pair in pairs} == {
        0: True,
        1: False,
    }
    assert all(
        pair.before is None or pair.before["task_id"] == pair.row["task_id"] for pair in pairs
    )
    assert len(select_responses(connect(run_folder), "true", None, 3)) == 3


@pytest.mark.parametrize(
    "condition", ["reward >", "rewards = 1", "true) UNION (FROM tasks", "iteration = 99"]
)
def test_a_condition_that_is_wrong_or_meets_nothing_is_told(condition, run_folder):
    with pytest.raises(DataError):
        select_responses(connect(run_folder), condition, None, 10)


def test_a_condition_may_end_in_a_comment(run_folder):
    plain = select_responses(connect(run_folder), "true", "true", 3)
    assert select_responses(connect(run_folder), "true -- all", "true -- all", 3) == plain


def test_a_page_that_cannot_be_written_is_named_and_nothing_is_left(run_folder, tmp_path):
    out = tmp_path / "folder.html"
    out.mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["trace", "true", "--root", str(run_folder), "--out", str(out)])
    assert str(ended.value.code).startswith("error: ")
    assert str(out) in str(ended.value.code)
    assert list(tmp_path.rglob("*")) == [out]


def test_text_of_a_model_is_data_in_the_page(tmp_path):
    task = replace(make_tasks()[0], prompt="</script><script>alert(1)</script>", answer="<b>")
    write_tasks(tmp_path / "data" / "tasks" / "mixed.parquet", [task])
    rollout = make_rollout(task, 0, "rl@short", 1, "<img src=x>", character_tokenizer())
    write_rollouts(
        tmp_path / "data" / "rollouts" / "rl@short" / "one.parquet", rollout_table([rollout])
    )
    page = render_viewer(
        select_responses(connect(tmp_path), "true", None, 9), character_tokenizer(), "<i>true</i>"
    )
    assert page.count("<script") == 2
    assert "<img" not in page
    assert "<i>true" not in page
    assert data_of(page)["responses"][0]["prompt"] == task.prompt


# In the browser


def revealed(page: Page) -> list[int]:
    """Unmasked tokens of each panel."""
    return page.run(
        "[...document.querySelectorAll('.panel')].map((p) => "
        "p.querySelectorAll('i:not(.masked):not(.prompt)').length)"
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, True)])
def test_keys_alone_play_step_search_and_choose(width, dark, page_file, tmp_path):
    with browser(tmp_path) as page:
        page.open(page_file.as_uri(), width, dark=dark)
        assert page.run("document.querySelectorAll('#list li').length") == 8
        assert page.run("document.querySelectorAll('.panel').length") == 2
        page.press("Home")
        assert revealed(page) == [0, 0]
        page.press("ArrowRight", "ArrowRight")
        after_two = revealed(page)
        assert all(count > 0 for count in after_two)
        page.press("ArrowLeft", "ArrowRight")
        assert revealed(page) == after_two
        page.run("document.getElementById('speed').value = '60'")
        page.press("Home", " ")
        page.wait_for("state.step === state.last && state.timer === 0")
        assert revealed(page) == page.run("state.panels.map((panel) => panel.ids.length)")
        assert "background" in page.run(
            "document.querySelector('.panel i:not(.prompt)').getAttribute('style')"
        )
        page.press("ArrowDown")
        assert page.run(
            "document.querySelector('[aria-selected=true]') === document.querySelectorAll('#list "
            "li')[1]"
        )
        page.press("/", *"4+7")
        assert page.run("document.activeElement.id") == "search"
        assert 0 < page.run("document.querySelectorAll('#list li').length") < 8
        page.press("Escape")
        page.run(
            "(document.getElementById('search').value = '', filter(), "
            "document.getElementById('verdict').value = 'wrong', filter())"
        )
        assert 0 < page.run("document.querySelectorAll('#list li').length") < 8
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.errors == []
        assert page.requests == []


def test_a_step_repaints_its_own_tokens_and_hundreds_of_responses_are_a_list_only(
    run_folder, tmp_path
):
    """What keeps long responses smooth, whose seconds benchmarks/viewer.py measures."""
    [response] = select_responses(connect(run_folder), "iteration = 2", None, 1)
    path = tmp_path / "long.html"
    path.write_text(
        render_viewer(long_responses(response, 300, 1024), character_tokenizer(), "long")
    )
    with browser(tmp_path) as page:
        page.open(path.as_uri())
        assert page.run("document.querySelectorAll('#list li').length") == 300
        assert page.run("document.querySelectorAll('.panel i:not(.prompt)').length") == 1024
        page.press("Home")
        page.run(
            "const changed = new Set();"
            "new MutationObserver((all) => all.forEach((one) => changed.add(one.target)))"
            ".observe(document.querySelector('.panel'), {subtree: true, childList: true, "
            "attributes: true})"
        )
        page.press("ArrowRight", "ArrowRight", "ArrowRight")
        assert 0 < page.run("changed.size") < 30
        assert page.errors == []
