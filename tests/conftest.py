"""Order of the suite: files that take minutes go first, so that no worker is left alone with one of
them at the end.

And one vector width, that of the shipped params, for tests that compute in this process.
"""

import os

import pytest

os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")

FIRST = (
    "test_served.py",
    "test_pipeline.py",
    "test_distributed.py",
    "test_dvc_experiments.py",
    "test_chaos.py",
    "test_resume.py",
    "test_stages.py",
    "test_families.py",
    "test_guard.py",
    "test_code.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST)
    )
