"""What the stages promise beyond the library: imported checkpoints, and results that do not depend on how often they are made."""

import json
from pathlib import Path

from safetensors.torch import load_file

from tests.tiny_run import digests, run_stage, tiny_params, write_params


def test_a_local_checkpoint_is_imported_as_it_is(tmp_path: Path) -> None:
    write_params(tmp_path / "first", tiny_params())
    for stage in ("tasks", "base"):
        run_stage(tmp_path / "first", stage)
    trained = tmp_path / "first" / "data" / "checkpoints" / "base"
    params = tiny_params()
    params["base"]["path"] = str(trained)
    write_params(tmp_path / "second", params)
    run_stage(tmp_path / "second", "base")
    imported = tmp_path / "second" / "data" / "checkpoints" / "base"
    assert digests(imported) == digests(trained)
    assert "lm_head.weight" in load_file(imported / "model.safetensors")
    names = [json.loads((tmp_path / run / "reports" / "metrics" / "base.json").read_text())["policy_hash"] for run in ("first", "second")]
    assert names[0] == names[1]


def test_a_stage_run_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write_params(tmp_path / run, tiny_params())
        for stage in ("tasks", "base"):
            run_stage(tmp_path / run, stage)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
