"""The pages of `dvc plots` show their curves without a network."""

import shutil
from pathlib import Path

import pytest

from tests.chromium import browser
from tests.flows.project import command
from tests.repository import commit, git
from tests.tiny_run import ROOT


@pytest.mark.timeout(600)
def test_a_page_of_curves_before_and_after_needs_no_network(tmp_path: Path) -> None:
    """The real pipeline's plots, one curve changed since the last commit: a line for each revision
    and each remasking mode."""
    folder = tmp_path / "project"
    (folder / "reports").mkdir(parents=True)
    shutil.copytree(ROOT / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    curves = folder / "reports" / "curves"
    curves.mkdir()
    (curves / "a.tsv").write_text("iteration\treward\n1\t0.1\n2\t0.3\n")
    (curves / "b.tsv").write_text(
        "iteration\tremasking\taccuracy\n0\tstatic\t0.1\n0\tdynamic\t0.2\n9\tstatic\t0.5\n9\tdynamic\t0.4\n"
    )
    of_reward, of_accuracy = (
        "{x: iteration, y: reward}",
        "{x: iteration, y: accuracy, template: scatter}",
    )
    (folder / "dvc.yaml").write_text(
        f"plots:\n  - reports/curves/a.tsv: {of_reward}\n  - reports/curves/b.tsv: {of_accuracy}\n"
    )
    git(folder, "init", "--quiet")
    for name, value in {"user.name": "test", "user.email": "test@localhost"}.items():
        git(folder, "config", name, value)
    commit(folder, "before")
    (curves / "a.tsv").write_text("iteration\treward\n1\t0.1\n2\t0.2\n3\t0.6\n")
    done = command(folder, "dvc", "plots", "diff", "-o", str(tmp_path / "page"))
    assert done.returncode == 0, done.stderr
    page = tmp_path / "page" / "index.html"
    assert "http" not in page.read_text().replace("https://vega.github.io/schema/vega-lite", "")
    with browser(tmp_path) as tab:
        tab.open(page.as_uri())
        text = tab.wait_for_words(
            "reports/curves/a.tsv",
            "reports/curves/b.tsv",
            "reward",
            "accuracy",
            "workspace static",
            "HEAD dynamic",
        )
        assert "0.6" in text
        assert tab.run("document.querySelectorAll('polyline').length") == 6
        assert tab.errors == []
