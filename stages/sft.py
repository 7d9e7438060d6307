"""One round of supervised fine-tuning, sft.<name> in the params: data/checkpoints/sft@<name>.

Example: python -m stages.sft short
"""

from collections.abc import Callable
from pathlib import Path

from stages.runtime import entry, paths
from stages.runtime.curves import write_curve
from stages.runtime.meters import measure, write_meters
from stages.runtime.progress import progress, warn_of_long_rows
from stages.runtime.scratch import open_workspace
from tracerl import distributed
from tracerl.disk import write_json
from tracerl.models.checkpoint import load_for_training, policy_hash, save_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.tokenizer import Tokenizer
from tracerl.seeds import generator_for
from tracerl.settings.params import Params
from tracerl.settings.training import Training
from tracerl.training.examples import load_examples
from tracerl.training.run_context import RunContext
from tracerl.training.sft import longest_sft_row, train_sft


def main(name: str) -> None:
    stage = f"sft@{name}"
    params = entry.start(stage, ranks=True)
    settings = params.sft[name]
    start = paths.CHECKPOINTS / settings.init

    def initial(params: Params) -> tuple[Policy, Tokenizer]:
        return load_for_training(
            start, params.compute, settings.lora, generator_for(params.seed, stage, "lora")
        )

    train_and_publish(stage, params, settings, settings.data, initial, start)


def train_and_publish(
    stage: str,
    params: Params,
    settings: Training,
    data: str,
    initial: Callable[[Params], tuple[Policy, Tokenizer]],
    *inputs: Path,
) -> None:
    """Trains from `initial` on `data` ("tasks" or "traces") and publishes checkpoint, curve and
    metrics of `stage`."""
    files = {task_set: paths.DATA / data / f"{task_set}.parquet" for task_set in settings.tasks}
    space = open_workspace(stage, [*files.values(), *inputs])
    model, tokenizer = initial(params)
    measure(stage, model)
    examples, num_dropped = load_examples(data, files, tokenizer, settings.max_length, stage)
    warn_of_long_rows(stage, longest_sft_row(settings, model.family), settings.micro_batch_tokens)
    context = RunContext(
        seed=params.seed,
        stage=stage,
        workspace=space,
        on_progress=progress(stage, "step"),
        launch=params.launch,
    )
    curve = train_sft(model, tokenizer, examples, settings, context)
    if not distributed.is_first():
        return
    save_checkpoint(model, tokenizer, space.directory / "checkpoint", paths.CHECKPOINTS / stage)
    metrics = {
        "policy_hash": policy_hash(model),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_examples": {task_set: len(pool) for task_set, pool in examples.items()},
        "dropped_too_long": num_dropped,
        "loss": curve[-1]["loss"],
    }
    write_json(space.directory / "metrics.json", metrics)
    write_curve(space.directory / "curve.tsv", curve)
    space.publish(paths.training_outputs(stage))
    write_meters(stage)


if __name__ == "__main__":
    entry.run(main, __doc__, "name")
