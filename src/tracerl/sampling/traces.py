"""The model's own preferred order for responses it did not write (paper, appendix B.1).

In every block the model repeatedly picks the `pick` masked positions with the largest maximum
probability given what is committed, the known tokens are committed there, until the block is done;
then neighbouring selections are merged to steps of `step_tokens` tokens. Since the tokens are
known, all blocks of a block-causal model are decided in one forward pass per selection.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from tracerl.models.policy import Policy
from tracerl.objectives.likelihood import predicted_logits
from tracerl.objectives.plans import MASKED, PREDICTED, VISIBLE, Plan, sampling_blocks
from tracerl.objectives.views import build_views
from tracerl.types import Trajectory


@torch.no_grad()
def preferred_order(
    model: Policy,
    trajectories: Sequence[Trajectory],
    block_size: int,
    pick: int,
    step_tokens: int,
) -> list[Trajectory]:
    """The trajectories with a `step_map` of steps of `step_tokens` tokens, never across the
    sampler's blocks of `block_size`."""
    blocks = [sampling_blocks(t, model.family, block_size) for t in trajectories]
    selection = [np.zeros(len(b), dtype=np.int64) for b in blocks]
    round_number = 0
    while any((s == 0).any() for s in selection):
        round_number += 1
        plans = [_plan(s == 0, b, model) for s, b in zip(selection, blocks, strict=True)]
        views = build_views(
            trajectories, plans, block_size, model.family, model.architecture.mask_id
        )
        confidence = predicted_logits(model, views).softmax(-1).max(-1).values.cpu().numpy()
        for i, (chosen, block) in enumerate(zip(selection, blocks, strict=True)):
            mine = (views.source == i).numpy()
            _select(chosen, block, views.token.numpy()[mine], confidence[mine], pick, round_number)
    return [
        replace(t, step_map=_merged(s, b, step_tokens // pick), block_size=block_size)
        for t, s, b in zip(trajectories, selection, blocks, strict=True)
    ]


def _plan(
    open_positions: npt.NDArray[np.bool_], blocks: npt.NDArray[np.int64], model: Policy
) -> Plan:
    """Asks about every open position: in one view if later blocks are invisible anyway, else in one
    view per block, later ones hidden."""
    together = model.family.attention == "block_causal"
    live = np.zeros(1, dtype=np.int64) if together else np.unique(blocks)
    own = np.zeros_like(blocks) if together else blocks
    states = np.where(
        own < live[:, None],
        VISIBLE,
        np.where(own == live[:, None], np.where(open_positions, PREDICTED, VISIBLE), MASKED),
    )
    return Plan(states=states.astype(np.int8), weights=np.ones(states.shape, dtype=np.float32))


def _select(
    chosen: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    confidence: npt.NDArray[np.float32],
    pick: int,
    round_number: int,
) -> None:
    """Marks the `pick` most confident open tokens of every block with the number of this selection;
    ties break by position."""
    order = np.lexsort((tokens, -confidence))
    for block in np.unique(blocks[tokens]):
        inside = [t for t in tokens[order] if blocks[t] == block][:pick]
        chosen[inside] = round_number


def _merged(
    selection: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64], merge: int
) -> npt.NDArray[np.int32]:
    """1-based steps over the whole response: blocks in order, inside a block every `merge`
    neighbouring selections."""
    pairs = np.stack([blocks, (selection - 1) // merge])
    _, steps = np.unique(pairs, axis=1, return_inverse=True)
    return (steps.reshape(-1) + 1).astype(np.int32)
