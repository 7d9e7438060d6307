"""Order of the suite: files that take minutes go first, so that no worker is left alone with one of
them at the end.

And one vector width, that of the shipped params, for tests that compute in this process.
"""

import os

import pytest

os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")

SLOW = ("test_resume.py", "test_pipeline.py", "test_served.py", "test_families.py", "test_code.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))
