"""A change of any first-party module that a stage imports must make DVC run the stage again: each
is listed among its deps."""

import ast
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
STAGES = {
    name: entry.get("do", entry)
    for name, entry in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
}


def module_file(name: str) -> Path | None:
    """The file of a first-party module, None for anything else."""
    for folder in (ROOT / "src", ROOT):
        for path in (
            folder / f"{name.replace('.', '/')}.py",
            folder / name.replace(".", "/") / "__init__.py",
        ):
            if name.split(".")[0] in ("tracerl", "stages") and path.is_file():
                return path
    return None


def imported(path: Path) -> set[Path]:
    """First-party files that a file imports, anywhere in it. Relative imports are not used here,
    and are an error."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        found |= {file for name in names if (file := module_file(name))}
    return found


def only_a_docstring(path: Path) -> bool:
    return all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


def needed(command: str) -> set[str]:
    """The files of this project that `python -m MODULE ...` runs or imports, by path below the
    root."""
    files, waiting = set[Path](), [module_file(command.split()[2])]
    while waiting:
        file = waiting.pop()
        if file is not None and file not in files:
            files.add(file)
            waiting += imported(file)
    return {file.relative_to(ROOT).as_posix() for file in files if not only_a_docstring(file)}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_lists_every_first_party_module_it_imports(name: str) -> None:
    deps = STAGES[name]["deps"]
    files = needed(STAGES[name]["cmd"])
    assert len(files) > 3, "the walk found nothing to check"
    missing = sorted(
        file for file in files if not any(file == dep or file.startswith(f"{dep}/") for dep in deps)
    )
    lines = "\n".join(f"      - {file}" for file in missing)
    assert not missing, (
        f"add to the deps of {name} in dvc.yaml (or the folder they are in):\n{lines}"
    )


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_lists_no_code_that_is_not_there(name: str) -> None:
    code = [dep for dep in STAGES[name]["deps"] if dep.startswith(("src/", "stages/"))]
    assert [dep for dep in code if not (ROOT / dep).exists()] == []
