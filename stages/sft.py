"""One round of supervised fine-tuning, sft.<name> in the params: data/checkpoints/sft@<name>.

Example: python -m stages.sft short
"""

from collections.abc import Callable
from typing import Any

from stages import context
from tracerl.config import Params, SftRound
from tracerl.models.checkpoint import load_checkpoint, policy_hash, save_checkpoint
from tracerl.models.tokenizer import Tokenizer
from tracerl.models.transformer import Transformer
from tracerl.store.files import read_tasks, read_trajectories
from tracerl.store.workspace import write_json
from tracerl.training.sft import check_lengths, train_sft, worked_trajectory
from tracerl.types import Trajectory


def main(name: str) -> None:
    params = context.load()
    settings = context.section(params.sft, "sft", name)
    start = context.CHECKPOINTS / settings.init
    train_and_publish(f"sft@{name}", params, settings, settings, lambda _: load_checkpoint(start), start)


def train_and_publish(
    stage: str, params: Params, section: Any, settings: SftRound, initial: Callable[[Params], tuple[Transformer, Tokenizer]], *inputs: Any
) -> None:
    """Trains from `initial` and publishes checkpoint, curve and metrics of `stage`."""
    source = context.TASKS if settings.data == "tasks" else context.TRACES
    files = [source / f"{task_set}.parquet" for task_set in settings.tasks]
    space = context.workspace(stage, params, section, [*files, *inputs])
    model, tokenizer = initial(params)
    examples, dropped = check_lengths(read_examples(settings, tokenizer), settings.max_length, stage)
    curve = train_sft(model, tokenizer, examples, settings, params.seed, stage, space, context.progress(stage, "step"))
    save_checkpoint(model, tokenizer, space.directory / "checkpoint")
    metrics = {
        "policy_hash": policy_hash(model),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_examples": {task_set: len(pool) for task_set, pool in examples.items()},
        "dropped_too_long": dropped,
        "loss": curve[-1]["loss"],
    }
    write_json(space.directory / "metrics.json", metrics)
    context.write_curve(space.directory / "curve.tsv", curve)
    space.publish(context.training_outputs(stage))


def read_examples(settings: SftRound, tokenizer: Tokenizer) -> dict[str, list[Trajectory]]:
    """Training examples by task set: worked solutions of the train split, or collected traces."""
    if settings.data == "traces":
        return {name: [t for _, t in read_trajectories(context.TRACES / f"{name}.parquet")] for name in settings.tasks}
    tasks = {name: read_tasks(context.TASKS / f"{name}.parquet") for name in settings.tasks}
    return {name: [worked_trajectory(t, tokenizer) for t in pool if t.split == "train" and t.solution] for name, pool in tasks.items()}


if __name__ == "__main__":
    context.run(main, __doc__, "name")
