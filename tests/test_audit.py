"""`make audit`: a known hole is an error, a check that cannot be made is told."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SOUND = {"name": "sound", "version": "1.0", "vulns": []}
HOLE = {"name": "old", "version": "2.0", "vulns": [{"id": "X-1", "fix_versions": ["2.1"]}]}
UNKNOWN = {"name": "other", "skip_reason": "not found"}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    path = Path(__file__).parents[1] / ".ci" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("packages", "status", "told"),
    [
        ([SOUND], 0, "1 packages checked, 0 known holes"),
        ([SOUND, HOLE], 1, "old 2.0: X-1, fixed in 2.1"),
        ([SOUND, UNKNOWN], 0, "not checked, the index does not know them: other"),
        ([UNKNOWN, UNKNOWN], 0, "not checked for known holes"),
    ],
)
def test_a_known_hole_is_an_error_and_a_package_that_is_not_known_is_named(
    audit: ModuleType,
    packages: list[dict[str, Any]],
    status: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert audit.tell(packages) == status
    assert told in capsys.readouterr().out


def test_without_an_index_it_says_that_nothing_was_checked(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.tell_unchecked("a\nno route to host") == 0
    assert "not checked for known holes, no index answers: no route to host" in (
        capsys.readouterr().out
    )
