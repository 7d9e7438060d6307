"""Scratch work survives a kill anywhere, and an output is complete or absent at every moment."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tracerl.disk import write_json, write_text
from tracerl.errors import DataError
from tracerl.training.scratch import Workspace


class Killed(BaseException):
    """What a kill is to the code: nothing after it runs."""


class Listing(list[Any]):
    """A folder's entries, as os.scandir gives them."""

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *error: object) -> None:
        pass


@contextmanager
def killed_at(moment: int, backwards: bool = False) -> Iterator[list[str]]:
    """Kills just before the `moment`-th change to the file system; yields the changes that were
    made.

    Folders are walked in the order of their names, or backwards: file systems may choose any.
    """
    made: list[str] = []
    patch = pytest.MonkeyPatch()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if len(made) == moment:
                raise Killed
            made.append(name)
            return real(*arguments, **options)

        return call

    def scandir(*arguments: Any, real: Callable[..., Any] = os.scandir) -> Listing:
        with real(*arguments) as entries:
            return Listing(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    for name in ("replace", "rename", "unlink", "rmdir", "mkdir"):
        patch.setattr(os, name, counted(name, getattr(os, name)))
    patch.setattr(shutil, "copyfile", counted("copyfile", shutil.copyfile))
    patch.setattr(os, "scandir", scandir)
    try:
        yield made
    except Killed:
        made.append("killed")
    finally:
        patch.undo()


def stage(root: Path, units: int = 3) -> None:
    """A small stage: in each unit a row file and a number more, then a checkpoint, a metrics file,
    and all of it published."""
    space = Workspace(root / "scratch" / "stage-1")
    saved = space.load()
    total, done = (saved[0]["total"], saved[1]["done"]) if saved else (torch.zeros(2), 0)
    while done < units:
        done += 1
        write_text(space.directory / "rows" / f"unit-{done}.txt", f"row {done}\n")
        total = total + done
        space.save({"total": total}, {"done": done})
    write_text(space.directory / "checkpoint" / "weights.txt", f"{total.tolist()}\n")
    write_json(space.directory / "metrics.json", {"total": float(total.sum())})
    outputs = {
        "rows": root / "data" / "rows",
        "metrics.json": root / "reports" / "metrics.json",
        "checkpoint": root / "data" / "checkpoint",
    }
    space.publish(outputs)


def contents(path: Path) -> dict[str, str] | str | None:
    """What is at `path`: a file's text, a folder's files, or nothing."""
    if path.is_file():
        return path.read_text()
    return (
        {
            str(file.relative_to(path)): file.read_text()
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
        if path.is_dir()
        else None
    )


def outputs(root: Path) -> "Contents":
    return {
        name: contents(root / name)
        for name in ("data/rows", "reports/metrics.json", "data/checkpoint")
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    stage(root)
    assert outputs(root) == {
        "data/rows": {f"unit-{i}.txt": f"row {i}\n" for i in (1, 2, 3)},
        "reports/metrics.json": '{\n  "total": 12.0\n}\n',
        "data/checkpoint": {"weights.txt": "[6.0, 6.0]\n"},
    }
    return root


Contents = dict[str, dict[str, str] | str | None]
BEFORE = [pytest.param(False, id="nothing before"), pytest.param(True, id="an earlier run before")]
WALKS = [pytest.param(False, id="forwards"), pytest.param(True, id="backwards")]


def fresh(root: Path, earlier: bool) -> Contents:
    """Lets an earlier run with other settings leave its outputs, or none; returns what is there."""
    if earlier:
        stage(root, units=2)
    return outputs(root)


def number_of_changes(root: Path, earlier: bool) -> int:
    fresh(root, earlier)
    with killed_at(-1) as made:
        stage(root)
    assert {"replace", "copyfile", "mkdir", "unlink", "rmdir"} <= set(made)
    return len(made)


@pytest.mark.parametrize("backwards", WALKS)
@pytest.mark.parametrize("earlier", BEFORE)
def test_every_output_is_complete_or_absent_whenever_a_stage_is_killed(
    undisturbed, tmp_path, earlier, backwards
):
    for moment in range(number_of_changes(tmp_path / "count", earlier)):
        root = tmp_path / f"{moment}"
        old = fresh(root, earlier)
        with killed_at(moment, backwards) as made:
            stage(root)
        assert made[-1] == "killed"
        for name, found in outputs(root).items():
            assert found in (None, old[name], outputs(undisturbed)[name]), (
                f"{name}, killed before change {moment} ({made[-4:]})"
            )


@pytest.mark.parametrize("backwards", WALKS)
@pytest.mark.parametrize("earlier", BEFORE)
def test_a_stage_killed_anywhere_ends_as_if_undisturbed_when_it_is_run_again(
    undisturbed, tmp_path, earlier, backwards
):
    for moment in range(number_of_changes(tmp_path / "count", earlier)):
        root = tmp_path / f"{moment}"
        fresh(root, earlier)
        with killed_at(moment, backwards) as made:
            stage(root)
        stage(root)
        assert outputs(root) == outputs(undisturbed), f"killed before change {moment} ({made[-4:]})"
        leftovers = [
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.suffix == ".tmp" or path.parent.name == "scratch"
        ]
        assert leftovers == [], f"killed before change {moment} ({made[-4:]})"


def test_a_stage_killed_twice_ends_as_if_undisturbed(undisturbed, tmp_path):
    changes = number_of_changes(tmp_path / "count", earlier=False)
    for first in range(0, changes, 5):
        root = tmp_path / str(first)
        for moment in (first, (7 * first + 3) % changes):
            with killed_at(moment):
                stage(root)
        stage(root)
        assert outputs(root) == outputs(undisturbed)


def test_finished_units_are_not_repeated(tmp_path):
    space = Workspace(tmp_path / "scratch")
    assert space.load() is None
    tensors = {
        "a": torch.arange(6).reshape(2, 3).T,
        "half": torch.tensor([0.1], dtype=torch.bfloat16),
        "step": torch.tensor(7),
    }
    space.save(tensors, {"done": 2, "curve": [{"loss": 0.1}]})
    loaded = Workspace(tmp_path / "scratch").load()
    assert loaded is not None
    assert loaded[1] == {"done": 2, "curve": [{"loss": 0.1}]}
    assert loaded[0].keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[0][name].dtype == tensor.dtype
        assert torch.equal(loaded[0][name], tensor)


def test_a_save_that_was_cut_off_is_forgotten(tmp_path):
    space = Workspace(tmp_path / "scratch")
    space.save({"a": torch.ones(1)}, {"done": 1})
    (tmp_path / "scratch" / "state.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "scratch" / "rows").mkdir()
    (tmp_path / "scratch" / "rows" / "unit-2.parquet.tmp").write_bytes(b"half")
    loaded = Workspace(tmp_path / "scratch").load()
    assert loaded is not None
    assert loaded[1] == {"done": 1}
    assert not list((tmp_path / "scratch").rglob("*.tmp"))


def test_a_failed_save_keeps_the_state_before_it(tmp_path):
    space = Workspace(tmp_path / "scratch")
    space.save({"a": torch.ones(1)}, {"done": 1})
    with pytest.raises(TypeError):
        space.save({"a": torch.zeros(1)}, {"done": object()})
    loaded = space.load()
    assert loaded is not None
    assert (loaded[0]["a"].item(), loaded[1]) == (1.0, {"done": 1})


def test_json_has_a_fixed_order_and_an_end(tmp_path):
    write_json(tmp_path / "new" / "metrics.json", {"b": 1, "a": [0.1]})
    assert (
        tmp_path / "new" / "metrics.json"
    ).read_text() == '{\n  "a": [\n    0.1\n  ],\n  "b": 1\n}\n'
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["metrics.json"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_of_every_dtype_and_shape_come_back(dtype, shape, tmp_path):
    space = Workspace(tmp_path / "scratch")
    tensor = torch.ones(shape).to(dtype)
    space.save({"t": tensor}, {"step": 1, "text": "π"})
    loaded = space.load()
    assert loaded is not None
    assert loaded[1] == {"step": 1, "text": "π"}
    assert torch.equal(loaded[0]["t"], tensor)
    assert loaded[0]["t"].dtype == dtype


def test_a_state_with_any_one_bit_changed_is_refused(tmp_path):
    """Every byte of the file, one bit each: nothing resumes to other weights, and what is wrong is
    told with the way out."""
    space = Workspace(tmp_path / "scratch")
    space.save({"w": torch.arange(8.0)}, {"step": 3})
    path = tmp_path / "scratch" / "state.safetensors"
    sound = path.read_bytes()
    for place in range(len(sound)):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(bytes(damaged))
        message = ""
        loaded = None
        try:
            loaded = space.load()
        except DataError as error:
            message = str(error)
        if loaded is None:
            assert "the saved state is damaged" in message
            assert str(path) in message
            assert "delete this file" in message
        else:  # white space that pads the header, or the name of a key that nothing reads
            assert loaded[1] == {"step": 3}
            assert torch.equal(loaded[0]["w"], torch.arange(8.0))


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_truncated_state_is_refused(length, tmp_path):
    space = Workspace(tmp_path / "scratch")
    space.save({"w": torch.arange(8.0)}, {"step": 3})
    path = tmp_path / "scratch" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match="the saved state is damaged"):
        space.load()


def test_a_state_without_a_checksum_is_refused(tmp_path):
    from safetensors.torch import save_file

    space = Workspace(tmp_path / "scratch")
    for metadata in (None, {"progress": "{}"}):
        save_file({"w": torch.zeros(1)}, tmp_path / "scratch" / "state.safetensors", metadata)
        with pytest.raises(DataError, match="the saved state is damaged"):
            space.load()
