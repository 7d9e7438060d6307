"""Pictures of the pages of reports/ for the docs: python -m tests.pictures, after `dvc repro`.

Those of Prefect's pages: SCREENSHOTS=docs/images python -m pytest tests/flows/test_served.py.
"""

import tempfile
from pathlib import Path

from tests.chromium import browser
from tests.tiny_run import ROOT

# Picture -> page, width, height, dark, and what is done in the page before it is taken.
PICTURES = {
    "report-light": (
        "report.html",
        1280,
        900,
        False,
        "document.getElementById('won').scrollIntoView()",
    ),
    "report-dark": (
        "report.html",
        1280,
        900,
        True,
        "document.querySelectorAll('#curves h3')[2].scrollIntoView()",
    ),
    "report-phone": (
        "report.html",
        390,
        844,
        False,
        "document.getElementById('provenance').scrollIntoView()",
    ),
    "validation-light": ("validation/rollouts.html", 1280, 900, False, ""),
    "viewer-light": ("traces.html", 1280, 800, False, "go(4)"),
    "viewer-dark": ("traces.html", 1280, 800, True, "go(6)"),
    "viewer-phone": ("traces.html", 390, 844, True, ""),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as page:
        for name, (file, width, height, dark, script) in PICTURES.items():
            page.open((ROOT / "reports" / file).as_uri(), width, height, dark)
            page.run(script)
            page.screenshot(ROOT / "docs" / f"{name}.png")


if __name__ == "__main__":
    main()
