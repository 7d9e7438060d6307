"""Laws of the pages: each can be found, each link leads somewhere, each line fits a terminal."""

import re
from pathlib import Path

import pytest

from tracerl.settings.reference import params_reference

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def links(page: Path) -> list[str]:
    """Targets of the Markdown links and pictures of a page that are neither web addresses nor
    headings of the same page."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [
        target.split("#")[0]
        for target in targets
        if not target.startswith(("#", "http://", "https://"))
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("start", ["README.md", "docs/README.md"])
def test_every_page_is_linked_from_the_readme_and_the_index(start: str) -> None:
    page = ROOT / start
    linked = {(page.parent / link).resolve() for link in links(page)}
    assert [page_id(other) for other in DOCS if other not in {*linked, page}] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_lines_fit_120_columns_but_for_rows_of_tables(page: Path) -> None:
    wide = [
        number
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        if len(line) > 120 and not line.startswith("|")
    ]
    assert wide == []


def test_the_page_of_keys_is_that_of_the_settings() -> None:
    assert (ROOT / "docs" / "params.md").read_text() == params_reference(), (
        "run `tracerl params > docs/params.md`"
    )


def test_every_key_of_a_params_file_has_a_meaning() -> None:
    rows = [line for line in params_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_file_of_the_architecture_page_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`([A-Za-z0-9_/.]+\.(?:py|yaml)|[a-z_]+/)`", text)
    assert len(paths) > 60
    folders = (ROOT, ROOT / "src" / "tracerl")
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []
