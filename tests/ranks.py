"""What tests/test_distributed.py runs on every rank: python -m tests.ranks FOLDER. The first rank
writes what came of it.

`round_of_rl` is also what the test runs alone, for comparison.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from tests.rounds import by_split, round_of, run_context
from tests.tiny import tiny_architecture
from tracerl import distributed
from tracerl.models import transformer
from tracerl.models.policy import fit_adapters, new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.value import ValueModel
from tracerl.rollouts import responses
from tracerl.seeds import generator_for
from tracerl.settings.models import Launch, Lora
from tracerl.training import collect, rl, sharded
from tracerl.training.collect import Judging
from tracerl.training.trainer import Trainer
from tracerl.types import Rollout, Task

OPTIMIZER = {
    "lr": 0.01,
    "betas": [0.9, 0.99],
    "weight_decay": 0.1,
    "clip_norm": 0.5,
    "warmup": 0,
    "decay": 0.0,
}
CRITIC = {
    "start": "policy",
    "discount": 1.0,
    "trace": 1.0,
    "clip": 10.0,
    "every": 1,
    "updates": 2,
    "optimizer": OPTIMIZER,
}
Zero = Literal[0, 1, 2, 3]


@dataclass(frozen=True)
class World:
    """How a round runs. checkpointed: layers are computed again for the gradient."""

    zero: Zero = 0
    lora: bool = False
    offload: bool = False
    checkpointed: bool = False
    dtype: torch.dtype = torch.float32


WORLDS = {
    "plain": World(),
    "zero1": World(1, lora=True),
    "zero2": World(2),
    "zero2-lora": World(2, lora=True, offload=True, checkpointed=True),
    "zero3": World(3, checkpointed=True),
    "zero3-lora": World(3, lora=True, offload=True),
}
STOPPED = ("plain", "zero2", "zero3-lora")  # of these, a state is left for one process
GROWN = ("zero2", "zero3")  # these go on from what one process left
HALVES = {
    "plain-bfloat16": World(0, dtype=torch.bfloat16),
    "zero2-bfloat16": World(2, offload=True, dtype=torch.bfloat16),
    "zero3-bfloat16": World(3, checkpointed=True, dtype=torch.bfloat16),
}


class StoppedError(Exception):
    pass


def paid(rollouts: list[Rollout]) -> list[Rollout]:
    """Right or wrong by their tokens, so that there is something to learn."""
    rewards = [float(r.trajectory.response_ids.sum() % 3 == 0) for r in rollouts]
    said = ["correct" if x else "wrong" for x in rewards]
    return [
        replace(r, reward=x, reward_parts={"correct": x}, verdict=v)
        for r, x, v in zip(rollouts, rewards, said, strict=True)
    ]


def round_of_rl(folder: Path, world: World, stop_after: int | None = None) -> dict[str, Any]:
    """Three iterations with a value model, three groups of three (nine rows for two ranks), and
    micro-batches of a response or two."""
    tokenizer = character_tokenizer()
    shape = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_layers": 1,
        "head_dim": 8,
    }
    held_out = {
        "tasks": None,
        "every": 4,
        "num_problems": 1,
        "bootstrap": 10,
        "num_samples": 1,
        "modes": {"static": {"order": {"kind": "static"}}},
    }
    few = {
        "groups": 3,
        "group_size": 3,
        "min_groups": 1,
        "max_sampled_groups": 3,
        "pass_rate": [0.0, 1.0],
        "micro_batch_tokens": 30,
    }
    settings = round_of(
        "tracerl",
        {"block_size": 2, "steps_per_block": 2, "order": {"kind": "static"}, "max_new_tokens": 6},
        advantages="gae",
        value=CRITIC,
        train_block_size=2,
        tasks={"set": 1.0},
        held_out=held_out,
        iterations=3,
        optimizer=OPTIMIZER,
        **few,
    )
    tasks = [
        Task(
            task_id=f"set/{i}",
            task_set="set",
            kind="text",
            split=split,
            difficulty=1,
            prompt=f"{i}?",
            answer="1",
            solution="",
        )
        for i in range(4)
        for split in ("train", "test")
    ]
    model = (
        new_model(
            tiny_architecture("sdar", mask_id=tokenizer.mask_id, **shape),
            generator_for(1, "policy"),
        )
        .eval()
        .to(world.dtype)
    )
    model.checkpoint_layers = world.checkpointed
    fit_adapters(
        model,
        Lora(rank=2, alpha=4.0, dropout=0.0, targets=["q_proj", "v_proj"]) if world.lora else None,
        folder,
        "0",
        generator_for(1, "lora"),
    )
    value = ValueModel(model)
    launch = Launch(ranks=2, hosts=[], port=29400, zero=world.zero, offload=world.offload)

    def progress(done: int, total: int, text: str) -> None:
        if done == stop_after:
            raise StoppedError

    respond = responses.respond
    # So small that ZeRO 3 really takes all parameters apart, and that logits are made in several
    # parts, not as many on every rank.
    apart, parts = (
        patch.object(sharded, "MAX_WHOLE_NUMBERS", 0),
        patch.object(transformer, "LOGITS_AT_ONCE", 200),
    )
    judged = patch.object(
        collect, "respond", lambda *arguments, **named: paid(respond(*arguments, **named))
    )
    try:
        for one in (judged, apart, parts):
            one.start()
        curves = rl.train_rl(
            rl.Models(policy=model, tokenizer=tokenizer, value_model=value),
            by_split(tasks),
            settings,
            Judging(truncated_is_wrong=True),
            run_context(folder, progress, launch),
        )
    except StoppedError:
        return {}
    finally:
        for one in (judged, apart, parts):
            one.stop()
    if distributed.is_first():
        models = {"policy": model, "value": value}
        save_file(
            {
                f"{n}.{k}": v.contiguous()
                for n, m in models.items()
                for k, v in m.state_dict().items()
            },
            folder / "weights.safetensors",
        )
        (folder / "curves.json").write_text(json.dumps(curves))
    return curves


def half_reached(zero: Zero) -> dict[str, torch.Tensor]:
    """What a trainer holds that goes on from a plain one of which a loss had reached one layer of
    two, and the other no moments."""

    settings = round_of("tracerl", optimizer=OPTIMIZER).optimizer

    def trainer(launch: Launch | None) -> Trainer[torch.nn.Sequential]:
        torch.manual_seed(1)
        return Trainer(
            torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(3, 5)), settings, 9, launch
        )

    plain = trainer(None)
    plain.step([plain.model[0]], lambda layer: ((next(layer.parameters()) ** 2).sum(), {}))
    with patch.object(sharded, "MAX_WHOLE_NUMBERS", 0):
        going_on = trainer(Launch(ranks=2, hosts=[], port=29400, zero=zero, offload=False))
        going_on.load_state(plain.state())
    loaded = going_on.state()
    return {f"plain.{k}": v.detach() for k, v in plain.state().items()} | {
        f"loaded.{k}": v.detach() for k, v in loaded.items()
    }


ZEROS: list[Zero] = [0, 1, 2, 3]
DRIFTS = [(zero, dtype) for zero in ZEROS for dtype in (torch.float32, torch.bfloat16)]
DRIFT_STEPS = 50
DRIFT_RATE = 1e-6


def drift(zero: Zero, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The state of a trainer after steps of a constant gradient, from weights of one."""
    settings = round_of(
        "tracerl",
        optimizer={**OPTIMIZER, "lr": DRIFT_RATE, "weight_decay": 0.0, "clip_norm": 1e9},
    ).optimizer
    model = torch.nn.Linear(3, 5).to(dtype)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    with patch.object(sharded, "MAX_WHOLE_NUMBERS", 0):
        launch = Launch(ranks=2, hosts=[], port=29400, zero=zero, offload=False)
        trainer = Trainer(model, settings, DRIFT_STEPS, launch)
    inputs = torch.ones(1, 3, dtype=dtype)
    for _ in range(DRIFT_STEPS):
        trainer.step([inputs], lambda x: (trainer.model(x).sum(), {}))
    trainer.sync_model()
    passes = {f"passes.{name}": p.detach().clone() for name, p in model.named_parameters()}
    return {**{name: x.detach().clone() for name, x in trainer.state().items()}, **passes}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.join()
    assert distributed.size() == 2
    for name, world in {**WORLDS, **HALVES}.items():
        round_of_rl(folder / name, world)
        if name in (*STOPPED, *HALVES):
            round_of_rl(folder / f"{name}-stopped", world, stop_after=2)
    for name, world in HALVES.items():
        round_of_rl(folder / f"{name}-stopped", world)
    for name in GROWN:
        # Goes on from what one process left there.
        round_of_rl(folder / f"{name}-grown", WORLDS[name])
    for zero in (1, 2, 3):
        loaded = half_reached(zero)
        if distributed.is_first():
            save_file(
                {name: tensor.contiguous() for name, tensor in loaded.items()},
                folder / f"half-reached-{zero}.safetensors",
            )
    for zero, dtype in DRIFTS:
        state = drift(zero, dtype)
        if distributed.is_first():
            save_file(state, folder / f"drift-{zero}-{dtype}.safetensors")
    every = distributed.all_gather(list(range(7))[distributed.rank_slice(7)])
    shares = [distributed.shard_padded(list(range(n))) for n in (1, 2, 5)]
    texts = distributed.all_gather([json.dumps([every, shares])])
    if distributed.is_first():
        (folder / "shares.json").write_text(json.dumps([json.loads(text) for text in texts]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
