"""Published benchmark files, where they lie beside the repository; it does not contain them."""

from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[2] / "shared" / "benchmarks"


def published(name: str) -> Path:
    """A published file; without it the test is skipped."""
    path = PUBLISHED / name
    if not path.is_file():
        pytest.skip(f"needs the published file {name} beside the repository, in shared/benchmarks")
    return path
