"""Which of this project's files a stage runs: its module and everything that it imports, however
deep. `python -m stages.code` writes one list for each stage module, data/code/<kind>.txt, on which
DVC lets the stages of that kind depend.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from stages.runtime import debug, paths
from tracerl.disk import file_sha256, write_text
from tracerl.errors import DataError

SOURCE = Path(__file__).resolve().parents[2]
_PACKAGES = {"stages": Path("stages"), "tracerl": Path("src", "tracerl")}
_COMPILED = {".pyc", ".pyo"}


def stage_kinds(source: Path = SOURCE) -> list[str]:
    """Names of the modules that can be started as stages."""
    modules = sorted((source / "stages").glob("*.py"))
    return [path.stem for path in modules if "__main__" in path.read_text("utf-8")]


def write_code_lists(folder: Path, source: Path = SOURCE) -> None:
    """Writes <kind>.txt for every stage module below `source`; a file that did not change stays."""
    imports: dict[Path, list[Path]] = {}
    for kind in stage_kinds(source):
        write_text(folder / f"{kind}.txt", code_list(kind, source, imports))


def check_code(kind: str) -> None:
    """Raises DataError unless the code is that of data/code/<kind>.txt, which DVC records. A
    debug run takes the code as it is."""
    if debug.options.enabled:
        return
    path = paths.CODE / f"{kind}.txt"
    if not path.is_file():
        raise DataError(
            "there is no list of the code that this stage runs",
            where=str(path),
            do="run `dvc repro code`, or `python -m stages.code`",
        )
    recorded = set(path.read_text("utf-8").splitlines())
    changed = recorded ^ set(code_list(kind).splitlines())
    if changed:
        files = sorted({line.partition("  ")[2] for line in changed})
        raise DataError(
            "the code is not the code that DVC would record for this stage",
            where=str(path),
            got=f"other files: {', '.join(files)}",
            do="run `dvc repro`, or `python -m stages.code` and then this stage again",
        )


def code_list(
    kind: str, source: Path = SOURCE, imports: dict[Path, list[Path]] | None = None
) -> str:
    """A line "SHA-256  path" for each file that `python -m stages.<kind>` runs or reads as a
    resource, in the order of paths, relative to `source`. imports: as in `stage_files`."""
    lines = []
    for path in stage_files(kind, source, imports):
        lines.append(f"{file_sha256(path)}  {path.relative_to(source).as_posix()}\n")
    return "".join(lines)


def stage_files(
    kind: str, source: Path = SOURCE, imports: dict[Path, list[Path]] | None = None
) -> list[Path]:
    """First-party files of a stage module: modules by import, and the files beside a module that
    opens some.

    imports: what each file imports, as far as other stages have been looked at; what is missing is
    added. Reading the files is all of the time that this takes.
    """
    imports = {} if imports is None else imports
    files: set[Path] = set()
    waiting = _module_files(f"stages.{kind}", source)
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.add(file)
        if file not in imports:
            imports[file] = imported_files(file, source)
        waiting += imports[file]
    return sorted(files)


def imported_files(file: Path, source: Path = SOURCE) -> list[Path]:
    """First-party files that one file imports or opens, itself; none if it is no Python module."""
    if file.suffix != ".py":
        return []
    tree = ast.parse(file.read_text("utf-8"), filename=str(file))
    files = _resources(tree, file)
    for name in _imports(tree):
        files += _module_files(name, source)
    return files


def _module_files(name: str, source: Path) -> list[Path]:
    """The file of a first-party module and those of the packages it is in; none for any other
    name."""
    package, *parts = name.split(".")
    if package not in _PACKAGES:
        return []
    folder = source / _PACKAGES[package]
    files = [folder / "__init__.py"]
    for part in parts:
        files.append(folder / f"{part}.py")
        folder = folder / part
        files.append(folder / "__init__.py")
    return [file for file in files if file.is_file()]


def _imports(tree: ast.AST) -> Iterator[str]:
    """Names that a module imports anywhere, but for types only. `from a import b` may mean the
    module a.b."""
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A syntax tree without the bodies of `if TYPE_CHECKING`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _runtime_nodes(other)
        else:
            yield from _runtime_nodes(child)


def _resources(tree: ast.AST, file: Path) -> list[Path]:
    """Files beside a module that looks for its own folder (`__file__`): templates and scripts, and
    modules that it names as text."""
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes):
        return []
    texts = {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    resources = []
    for path in file.parent.iterdir():
        if not path.is_file() or path.suffix in _COMPILED:
            continue
        if path.suffix != ".py" or path.name in texts:
            resources.append(path)
    return resources
