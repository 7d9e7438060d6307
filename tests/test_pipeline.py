"""The chain through DVC: one command runs everything, a second runs nothing, and a changed number
reruns its round and what follows.

And through git: a clone pulls checkpoints and trajectories from a remote instead of making them,
and an older commit brings back its own.
"""

import json
from pathlib import Path

import pytest
import yaml

from tests.chain import chain_params, commit_and_tag, dvc, make_chain, results, stages_run
from tests.repository import git

pytestmark = pytest.mark.timeout(600)

STAGES = [
    "code",
    "params",
    "tasks",
    "base",
    "traces",
    "sft@short",
    "rl@short",
    "sft@long",
    "rl@long",
    "rl@enlarge",
    "rl@wide",
    "evaluate@rl-short",
    "evaluate@wide-k8",
    "validate@tasks",
    "validate@traces",
    "validate@rollouts",
    "validate@evals",
    "report",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with tiny params and two evaluations, in which `dvc repro` has run once; its
    results are the tag `first`."""
    folder = tmp_path_factory.mktemp("chain") / "project"
    params = chain_params()
    params["evaluate"] = {name: params["evaluate"][name] for name in ("rl-short", "wide-k8")}
    make_chain(folder, params)
    dvc(folder, "remote", "add", "--quiet", "--default", "store", str(folder.parent / "store"))
    order = stages_run(dvc(folder, "repro"))
    assert sorted(order) == sorted(STAGES)
    (folder / "order").write_text("\n".join(order))
    commit_and_tag(folder, "first")
    return folder


def test_the_chain_runs_from_nothing_and_leaves_no_scratch(project: Path) -> None:
    summary = json.loads((project / "reports" / "metrics" / "summary.json").read_text())
    assert {row["checkpoint"] for row in summary["rows"]} == {"rl@short", "rl@wide"}
    assert (project / "reports" / "report.html").stat().st_size > 10_000
    assert not list((project / "data" / "scratch").iterdir())


def test_a_second_run_does_nothing(project: Path) -> None:
    assert stages_run(dvc(project, "repro")) == []
    assert "up to date" in dvc(project, "status")


def test_every_data_set_passed_and_what_reads_it_waited(project: Path) -> None:
    order = (project / "order").read_text().split()
    assert order.index("validate@tasks") < order.index("base")
    assert order.index("validate@traces") < order.index("sft@short")
    assert order.index("report") == len(order) - 1
    for dataset in ("tasks", "traces", "rollouts", "evals"):
        assert (
            json.loads((project / "reports" / "validation" / f"{dataset}.json").read_text())[
                "success"
            ]
            is True
        )


def test_git_holds_code_params_and_reports_and_dvc_the_data(project: Path) -> None:
    tracked = git(project, "ls-files").split()
    assert {
        "dvc.lock",
        "params.yaml",
        "reports/report.html",
        "reports/metrics/rl@wide.json",
        "reports/curves/rl@wide.tsv",
    } <= set(tracked)
    data = [
        name for name in tracked if name.startswith("data/") and not name.startswith("data/raw/")
    ]
    assert all(name.endswith(".gitignore") for name in data), data


@pytest.mark.parametrize("how", [["pull"], ["repro", "--pull"]], ids=" ".join)
def test_a_fresh_clone_pulls_everything_and_runs_nothing(
    project: Path, tmp_path: Path, how: list[str]
) -> None:
    """Checkpoints and trajectories come from the remote; nothing has to be computed again."""
    dvc(project, "push")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(project), str(clone))
    assert not (clone / "data" / "checkpoints" / "rl@wide").exists()
    assert stages_run(dvc(clone, *how)) == []
    assert any(name.startswith("checkpoints/rl@wide/") for name in results(clone))
    assert any(name.startswith("rollouts/rl@wide/") for name in results(clone))
    assert results(clone) == results(project)
    assert stages_run(dvc(clone, "repro")) == []


def test_a_changed_bound_reruns_the_validation_and_the_report_only(project: Path) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["validation"]["drift"] = 0.4
    (project / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    validations = ["validate@evals", "validate@rollouts", "validate@tasks", "validate@traces"]
    assert sorted(stages_run(dvc(project, "repro"))) == ["params", "report", *validations]


def test_a_changed_number_reruns_its_round_and_what_follows(project: Path) -> None:
    """An SFT round: its steps always move the weights, where an RL round of so small a model may
    find no group to learn from."""
    params = yaml.safe_load((project / "params.yaml").read_text())
    # The file's anchors make it the very dictionary of other rounds.
    optimizer = params["sft"]["long"]["optimizer"]
    params["sft"]["long"]["optimizer"] = {**optimizer, "lr": optimizer["lr"] / 2}
    (project / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    rerun = stages_run(dvc(project, "repro"))
    chain = ["params", "sft@long", "rl@long", "rl@enlarge", "rl@wide", "evaluate@wide-k8", "report"]
    assert [stage for stage in rerun if not stage.startswith("validate")] == chain
    assert sorted(stage for stage in rerun if stage.startswith("validate")) == [
        "validate@evals",
        "validate@rollouts",
    ]


def test_an_older_commit_brings_back_its_data_and_its_report(project: Path) -> None:
    """The project now stands where a changed number has rerun half of the chain."""
    commit_and_tag(project, "second")
    second = results(project)
    git(project, "checkout", "--quiet", "first")
    dvc(project, "checkout")
    first = results(project)
    changed = {name for name in first if first[name] != second.get(name)}
    assert any(name.startswith("checkpoints/sft@long/") for name in changed)
    assert "reports/report.html" in changed
    assert not any(name.startswith("checkpoints/sft@short/") for name in changed)
    assert stages_run(dvc(project, "repro")) == []
    git(project, "checkout", "--quiet", "second")
    dvc(project, "checkout")
    assert results(project) == second
