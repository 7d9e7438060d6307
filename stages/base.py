"""Makes the first checkpoint, data/checkpoints/base: imports base.path, adapts the autoregressive
one there, or trains the small default model on worked solutions.

Example: python -m stages.base
"""

from pathlib import Path

from torch import nn

from stages.runtime import entry, paths
from stages.runtime.curves import write_curve
from stages.runtime.meters import measure, write_meters
from stages.runtime.progress import progress, warn_of_long_rows
from stages.runtime.scratch import open_workspace
from stages.sft import train_and_publish
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.baselines import copy_baseline, is_baseline, load_baseline
from tracerl.models.checkpoint import apply_compute, load_checkpoint, policy_hash, save_checkpoint
from tracerl.models.conversion import convert_checkpoint
from tracerl.models.policy import Policy, new_model, shape_architecture
from tracerl.models.tokenizer import Tokenizer, character_tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.params import ORIGIN, Params
from tracerl.settings.training import Adapt
from tracerl.training.adaptation import train_adaptation
from tracerl.training.adaptation_examples import (
    AdaptationFolders,
    adaptation_files,
    load_adaptation_examples,
)
from tracerl.training.run_context import RunContext
from tracerl.training.sft import longest_sft_row


def main() -> None:
    params = entry.start("base", ranks=distributed.is_launched())
    base = params.base
    if base.path is None:
        params = entry.start("base", ranks=True)
        train_and_publish("base", params, base.train, "tasks", new_base)
    elif base.adapt is None:
        import_checkpoint(params, paths.ROOT / base.path)
    else:
        params = entry.start("base", ranks=True)
        adapt_checkpoint(params, base.adapt, paths.ROOT / base.path)


def new_base(params: Params) -> tuple[Policy, Tokenizer]:
    """An untrained model of the params' shape, over the character vocabulary."""
    tokenizer = character_tokenizer()
    architecture = shape_architecture(params.base.model, tokenizer)
    policy = new_model(architecture, generator_for(params.seed, "base", "weights"))
    return apply_compute(policy, params.compute), tokenizer


def adapt_checkpoint(params: Params, adapt: Adapt, path: Path) -> None:
    """Converts an autoregressive checkpoint and trains it to predict masked tokens; a copy of it
    lies beside the result, to be compared with."""
    folders = AdaptationFolders(root=paths.ROOT, tasks=paths.DATA / "tasks")
    files = adaptation_files(adapt, folders)
    space = open_workspace("base", [path, *files.values()])
    model, tokenizer = convert_checkpoint(path, adapt, params.base.token_ids, params.compute)
    measure("base", model)
    examples, num_dropped = load_adaptation_examples(adapt, files, tokenizer, "base")
    for phase in adapt.phase_trainings(mean_tokens=1.0):
        longest = longest_sft_row(phase, model.family)
        warn_of_long_rows("base", longest, phase.micro_batch_tokens)
    context = RunContext(
        seed=params.seed,
        stage="base",
        workspace=space,
        on_progress=progress("base", "step"),
        launch=params.launch,
    )
    curve = train_adaptation(model, tokenizer, examples, adapt, context)
    if not distributed.is_first():
        return
    save_checkpoint(model, tokenizer, space.directory / "checkpoint")
    copy_baseline(path, space.directory / "checkpoint" / Path(ORIGIN).name)
    metrics = {
        "policy_hash": policy_hash(model),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_examples": {name: len(pool) for name, pool in examples.items()},
        "dropped_too_long": num_dropped,
        "loss": curve[-1]["loss"],
        "accuracy": curve[-1]["accuracy"],
        "first_loss": curve[0]["loss"],
    }
    write_json(space.directory / "metrics.json", metrics)
    write_curve(space.directory / "curve.tsv", curve)
    space.publish(paths.training_outputs("base"))
    write_meters("base")


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
    (space.directory / "curve.tsv").write_text("step\tloss\n", "utf-8")
    space.publish(paths.training_outputs("base"))


if __name__ == "__main__":
    entry.run(main, __doc__)
