"""Makes the first checkpoint, data/checkpoints/base: imports base.path, or trains the small default
model on worked solutions.

Example: python -m stages.base
"""

from pathlib import Path

from torch import nn

from stages.runtime import entry, paths
from stages.runtime.scratch import open_workspace
from stages.sft import train_and_publish
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.baselines import copy_baseline, is_baseline, load_baseline
from tracerl.models.checkpoint import apply_compute, load_checkpoint, policy_hash, save_checkpoint
from tracerl.models.policy import Policy, new_model, shape_architecture
from tracerl.models.tokenizer import Tokenizer, character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.params import Params


def main() -> None:
    params = entry.start("base", ranks=distributed.is_launched())
    if params.base.path is None:
        params = entry.start("base", ranks=True)
        train_and_publish("base", params, params.base.train, "tasks", new_base)
    else:
        import_checkpoint(params, paths.ROOT / params.base.path)


def new_base(params: Params) -> tuple[Policy, Tokenizer]:
    """An untrained model of the params' shape, over the character vocabulary."""
    tokenizer = character_tokenizer()
    architecture = shape_architecture(params.base.model, tokenizer)
    policy = new_model(architecture, generator_for(params.seed, "base", "weights"))
    return apply_compute(policy, params.compute), tokenizer


def import_checkpoint(params: Params, path: Path) -> None:
    """Reads a published checkpoint strictly and writes it back under its published names; an
    autoregressive one is copied."""
    space = open_workspace("base", [path])
    if not distributed.is_first():
        return
    model: nn.Module
    if is_baseline(path):
        model, _ = load_baseline(path, params.compute)
        copy_baseline(path, space.directory / "checkpoint")
    else:
        model, tokenizer = load_checkpoint(
            path, token_ids=params.base.token_ids, family=params.base.model.family
        )
        save_checkpoint(model, tokenizer, space.directory / "checkpoint")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    write_json(
        space.directory / "metrics.json",
        {"policy_hash": policy_hash(model), "num_parameters": parameters},
    )
    (space.directory / "curve.tsv").write_text("step\tloss\n")
    space.publish(paths.training_outputs("base"))


if __name__ == "__main__":
    entry.run(main, __doc__)
