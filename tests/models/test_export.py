"""Exports: published names, adapters merged, whole or not at all."""

from pathlib import Path

import pytest
import torch

from tests.models.test_lora import CPU, adapted, hidden, trained
from tests.tiny import sharp_model
from tracerl.cli import main
from tracerl.errors import CheckpointError
from tracerl.models.checkpoint import load_checkpoint, policy_hash, save_checkpoint
from tracerl.models.export import export_checkpoint
from tracerl.models.tokenizer import character_tokenizer

TOKENIZER = character_tokenizer()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(
        sharp_model("llada", vocab_size=TOKENIZER.vocab_size, mask_id=TOKENIZER.mask_id),
        TOKENIZER,
        tmp_path / "base",
    )
    save_checkpoint(trained(tmp_path / "base"), TOKENIZER, tmp_path / "adapter")
    return tmp_path


@torch.no_grad()
def test_an_adapter_is_merged_whether_it_is_the_model_or_named(folder):
    wanted = hidden(load_checkpoint(folder / "adapter")[0])
    one = export_checkpoint(folder / "adapter", folder / "one", [], CPU)
    other = export_checkpoint(folder / "base", folder / "other", [folder / "adapter"], CPU)
    assert one == other == policy_hash(load_checkpoint(folder / "one")[0])
    torch.testing.assert_close(
        hidden(load_checkpoint(folder / "other")[0]), wanted, rtol=0, atol=1e-4
    )
    assert {p.name for p in (folder / "one").iterdir()} == {
        p.name for p in (folder / "base").iterdir()
    }


def test_without_adapters_an_export_is_the_checkpoint_byte_for_byte(folder):
    export_checkpoint(folder / "base", folder / "out", [], CPU)
    for path in (folder / "base").iterdir():
        assert (folder / "out" / path.name).read_bytes() == path.read_bytes()


def test_nothing_is_overwritten_and_a_foreign_adapter_is_refused(folder):
    with pytest.raises(CheckpointError, match="overwrite"):
        export_checkpoint(folder / "base", folder / "adapter", [], CPU)
    export_checkpoint(folder / "adapter", folder / "merged", [], CPU)
    with pytest.raises(CheckpointError, match="made for other weights"):
        export_checkpoint(folder / "merged", folder / "out", [folder / "adapter"], CPU)
    assert not (folder / "out").exists()
    assert adapted(folder / "adapter").adapters is not None


def test_the_command_exports(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "export",
                "--model",
                str(folder / "adapter"),
                "--out",
                str(folder / "half"),
                "--dtype",
                "bfloat16",
            ]
        )
    assert not ended.value.code
    model, _ = load_checkpoint(folder / "half")
    assert model.model.norm.weight.dtype is torch.bfloat16
    assert policy_hash(model) in capsys.readouterr().out
