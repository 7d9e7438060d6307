"""Views of trajectories, and the one place that makes noise.

A *plan* says for each view and response token whether the view holds it clean, masked, or masked
and predicted. Plans differ by objective (`trace_plan`, `segment_plan`, `random_plan`,
`coupled_plan`, ...); `build_views` lays any plan out for a family's attention rule:

* full attention: one row per view, the canvas with the view's positions masked;
* block-causal: one row per trajectory, `[clean | noisy_1 | ... | noisy_n]`, where a noisy view
holds only the blocks in which it predicts
  something. The clean half never looks at a noisy one, so one clean copy serves all views exactly
  (a test compares with separate rows).

Everything lies on the one absolute block grid of models/masks.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from tracerl.errors import DataError
from tracerl.models.families import Family
from tracerl.models.masks import CLEAN, COMMON, DOCUMENT, PAD, Layout, block_starts_after
from tracerl.models.transformer import predictor_positions
from tracerl.types import Rivals, Trajectory, Views

SHOWN, HIDDEN, PREDICTED, READ = 0, 1, 2, 3


@dataclass(frozen=True)
class Plan:
    """What the views of one response hold.

    states: int8 [views, R], state of every response token in every view: SHOWN, HIDDEN (masked),
    PREDICTED (masked and scored) or READ
        (masked, not scored, but a competitor in the order of commitment). weights: float32 [views,
        R], of the scored tokens.
    masked_prompt: bool [P], prompt tokens that are masked in all views. order: int64 [R], the place
    of every token in the order of
        commitment, where that order is scored. causal: the tokens are predicted left to right from
        a clean row instead.
    """

    states: npt.NDArray[np.int8]
    weights: npt.NDArray[np.float32]
    masked_prompt: npt.NDArray[np.bool_] | None = None
    order: npt.NDArray[np.int64] | None = None
    causal: bool = False


def joined(plans: Sequence[Plan]) -> Plan:
    """The views of several plans of one response as one plan."""
    return Plan(
        np.concatenate([plan.states for plan in plans]),
        np.concatenate([plan.weights for plan in plans]),
    )


def scaled(plan: Plan, factor: float) -> Plan:
    """The plan with all weights times a factor."""
    return replace(plan, weights=(plan.weights * factor).astype(np.float32))


def grid_blocks(trajectory: Trajectory, block_size: int, family: Family) -> npt.NDArray[np.int64]:
    """Block of each response token, int64 [R], on the absolute grid; for full attention the whole
    response is one block."""
    positions = len(trajectory.prompt_ids) + np.arange(len(trajectory.response_ids))
    return (
        positions // block_size if family.attention == "block_causal" else np.zeros_like(positions)
    )


def _blocks_with(
    trajectory: Trajectory, block_size: int, family: Family, chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which blocks of the grid hold a chosen token in which view, bool [views, B], from bool
    [views, R]; and their numbers, int64 [B]."""
    blocks = grid_blocks(trajectory, block_size, family)
    starts = np.flatnonzero(np.diff(blocks, prepend=-1))
    return np.logical_or.reduceat(chosen, starts, axis=1), blocks[starts]


def sampling_blocks(
    trajectory: Trajectory, family: Family, block_size: int
) -> npt.NDArray[np.int64]:
    """Block of each response token in the order of sampling, int64 [R]: on the grid, or counted
    from the response for full attention."""
    first = len(trajectory.prompt_ids) if family.attention == "block_causal" else 0
    return (first + np.arange(len(trajectory.response_ids))) // block_size


def trace_plan(trajectory: Trajectory, block_size: int, family: Family, shrink: int) -> Plan:
    """TraceRL's views: every `shrink` neighbouring distinct steps of a block are one group; view l
    predicts the l-th group of every block.

    Tokens of earlier groups are shown, of later ones hidden. Tokens after the first end token take
    their place in the order but are never predicted. A larger block than the rollout's holds
    several of its blocks, in the recorded order (block enlargement).
    """
    blocks = grid_blocks(trajectory, block_size, family)
    states = _ordered_states(
        _step_groups(trajectory, blocks, blocks, shrink), trajectory.num_tokens
    )
    states = states[(states == PREDICTED).any(1)]
    return Plan(states, np.ones(states.shape, dtype=np.float32))


def trace_steps(
    trajectory: Trajectory, block_size: int, family: Family, shrink: int
) -> npt.NDArray[np.int64]:
    """Number of the step of each trainable token, int64 [num_tokens]: the groups of `trace_plan` in
    the order of (block, group), from 0."""
    blocks = grid_blocks(trajectory, block_size, family)
    groups = _step_groups(trajectory, blocks, blocks, shrink)
    pairs = (blocks * len(blocks) + groups)[: trajectory.num_tokens]
    return _ranks(np.zeros_like(pairs), pairs)


def segment_plan(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    shrink: int,
    segments: int,
    ordered: bool,
    generator: np.random.Generator,
) -> Plan:
    """StepMerge's views: `shrink` neighbouring steps of one rollout block are a segment, scored on
    the canvas before its first step.

    The views of `trace_plan`, except that a segment never crosses a rollout block, whatever the
    attention rule or the training block, and that only `segments` of those that hold a trainable
    token are scored, drawn without replacement (all, if there are fewer).
    ordered: also keep what the order of commitment was chosen from. Raises DataError if the
    trajectory does not know its order.
    """
    blocks = grid_blocks(trajectory, block_size, family)
    live = sampling_blocks(trajectory, family, trajectory.block_size)
    groups = _step_groups(trajectory, blocks, live, shrink)
    states = _ordered_states(groups, trajectory.num_tokens)
    trainable = np.unique(np.stack([blocks, groups])[:, : trajectory.num_tokens], axis=1).T
    drawn = np.sort(generator.permutation(len(trainable))[:segments])
    kept = np.zeros(states.shape, dtype=bool)
    for block, group in trainable[drawn]:
        segment = (blocks == block) & (groups == group)
        kept[group] |= segment
        if ordered:
            rivals = (
                (live == live[segment][0])
                & (blocks == block)
                & (groups >= group)
                & (states[group] != PREDICTED)
            )
            states[group, rivals] = READ
    states[(states == PREDICTED) & ~kept] = HIDDEN
    views = (states == PREDICTED).any(1)
    order = _commitment_order(trajectory) if ordered else None
    return Plan(
        states[views], np.ones((int(views.sum()), len(blocks)), dtype=np.float32), order=order
    )


def _step_groups(
    trajectory: Trajectory, blocks: npt.NDArray[np.int64], inner: npt.NDArray[np.int64], shrink: int
) -> npt.NDArray[np.int64]:
    """Group of each response token, int64 [R], counted in its block: every `shrink` neighbouring
    distinct steps of an inner block."""
    group = _ranks(inner, trajectory.step_map.astype(np.int64)) // shrink
    return _ranks(blocks, inner * len(blocks) + group)


def _ranks(parts: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Place of each value among the distinct values of its part, from 0; all int64 [N]."""
    order = np.lexsort((values, parts))
    first, distinct = np.ones((2, len(values)), dtype=bool)
    np.not_equal(parts[order[1:]], parts[order[:-1]], out=first[1:])
    np.not_equal(values[order[1:]], values[order[:-1]], out=distinct[1:])
    number = (first | distinct).cumsum()
    ranks = np.empty_like(values)
    ranks[order] = number - np.maximum.accumulate(np.where(first, number, 0))
    return ranks


def _ordered_states(group: npt.NDArray[np.int64], num_tokens: int) -> npt.NDArray[np.int8]:
    """States in which view l predicts group l, shows earlier groups and hides later ones."""
    view = np.arange(group.max() + 1)[:, None]
    states = np.where(group < view, SHOWN, np.where(group == view, PREDICTED, HIDDEN)).astype(
        np.int8
    )
    states[:, num_tokens:][states[:, num_tokens:] == PREDICTED] = HIDDEN
    return states


def _commitment_order(trajectory: Trajectory) -> npt.NDArray[np.int64]:
    """Place of each response token in the order of commitment, int64 [R]: by step, inside a step by
    the recorded order."""
    if trajectory.order_in_step is None:
        raise DataError(
            "a trajectory does not know in which order its tokens were committed",
            where="a method that scores the order",
            wanted="responses sampled with remasking 'plackett_luce'",
        )
    place = np.empty(len(trajectory.step_map), dtype=np.int64)
    place[np.lexsort((trajectory.order_in_step, trajectory.step_map))] = np.arange(len(place))
    return place


def random_plan(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    noise: tuple[float, float],
    weighting: str,
    generator: np.random.Generator,
) -> Plan:
    """One view of random masking: a level t ~ U(noise) per block (per sequence for full attention),
    each token masked with probability t.

    weighting "inverse_t" gives each masked token the weight 1/t (an evidence bound when noise is
    (0, 1)), "uniform" the weight 1. A draw that masks nothing stays: it has no predicted token but
    its trainable tokens are counted in the denominator.
    """
    levels = _levels(grid_blocks(trajectory, block_size, family), noise, generator)
    masked = generator.random(len(levels)) < levels
    return Plan(
        _masked_states(masked, trajectory.num_tokens)[None], _weights(levels[None], weighting)
    )


def semi_ar_plan(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    noise: tuple[float, float],
    weighting: str,
    generator: np.random.Generator,
) -> Plan:
    """Semi-autoregressive views: a level per block, and for full attention a view per block,
    earlier blocks shown, later ones hidden.

    With block-causal attention it is `random_plan`: later blocks are invisible anyway, and earlier
    ones clean. Views that mask nothing are left out.
    """
    if family.attention == "block_causal":
        return random_plan(trajectory, block_size, family, noise, weighting, generator)
    blocks = sampling_blocks(trajectory, family, block_size)
    levels = _levels(blocks, noise, generator)
    inside = _masked_states(generator.random(len(levels)) < levels, trajectory.num_tokens)
    view = np.unique(blocks)[:, None]
    states = np.where(blocks < view, SHOWN, np.where(blocks == view, inside, HIDDEN)).astype(
        np.int8
    )
    states = states[(states == PREDICTED).any(1)]
    return Plan(states, np.broadcast_to(_weights(levels, weighting), states.shape))


def causal_plan(trajectory: Trajectory) -> Plan:
    """Next-token prediction: every trainable token from the clean tokens before it, for shifted
    families."""
    states = np.where(
        np.arange(len(trajectory.response_ids)) < trajectory.num_tokens, PREDICTED, SHOWN
    ).astype(np.int8)[None]
    return Plan(states, np.ones(states.shape, dtype=np.float32), causal=True)


def coupled_plan(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    noise: tuple[float, float],
    weighting: str,
    generator: np.random.Generator,
) -> Plan:
    """A view of random masking and its complement, so that every token is masked in exactly one of
    the two.

    weighting "inverse_t" gives the weights 1/t and 1/(1 - t), "uniform" the weight 1.
    """
    levels = _levels(grid_blocks(trajectory, block_size, family), noise, generator)
    masked = generator.random(len(levels)) < levels
    states = np.stack([_masked_states(part, trajectory.num_tokens) for part in (masked, ~masked)])
    return Plan(states, _weights(np.stack([levels, 1.0 - levels]), weighting))


def blockwise_plan(
    trajectory: Trajectory,
    family: Family,
    noise: tuple[float, float],
    generator: np.random.Generator,
) -> Plan:
    """One view as sampling in blocks sees a response: blocks before a drawn one shown, the drawn
    one partly masked, later ones wholly.

    The number of tokens masked in the drawn block is uniform between the two shares `noise` of its
    trainable tokens, at least one. Every masked trainable token is predicted and weighted by
    (trainable tokens) / (predicted tokens), an empirical 1/t.
    """
    live = sampling_blocks(trajectory, family, trajectory.block_size)
    count = trajectory.num_tokens
    block = generator.choice(np.unique(live[:count]))
    inside = np.flatnonzero(live[:count] == block)
    low, high = (max(1, int(share * len(inside))) for share in noise)
    masked = live > block
    masked[generator.permutation(inside)[: int(generator.integers(low, high + 1))]] = True
    masked[count:] = True
    weights = np.full((1, len(live)), count / masked[:count].sum(), dtype=np.float32)
    return Plan(_masked_states(masked, count)[None], weights)


def masked_response_plan(
    trajectory: Trajectory, prompt_rate: float, generator: np.random.Generator
) -> Plan:
    """One view of the wholly masked response after a prompt whose tokens are masked with
    probability `prompt_rate`."""
    states = _masked_states(
        np.ones(len(trajectory.response_ids), dtype=bool), trajectory.num_tokens
    )[None]
    masked_prompt = (
        generator.random(len(trajectory.prompt_ids)) < prompt_rate if prompt_rate else None
    )
    return Plan(states, np.ones(states.shape, dtype=np.float32), masked_prompt)


def _levels(
    blocks: npt.NDArray[np.int64], noise: tuple[float, float], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """A noise level per block, at each of its tokens."""
    return generator.uniform(*noise, size=int(blocks[-1] - blocks[0]) + 1)[blocks - blocks[0]]


def _weights(levels: npt.NDArray[np.float64], weighting: str) -> npt.NDArray[np.float32]:
    """Weight of a token masked at each noise level: 1/t for "inverse_t", 1 for "uniform"."""
    return (1.0 / levels if weighting == "inverse_t" else np.ones_like(levels)).astype(np.float32)


def _masked_states(masked: npt.NDArray[np.bool_], num_tokens: int) -> npt.NDArray[np.int8]:
    """Masked tokens are predicted, but those after the end token only hidden."""
    states = np.where(masked, PREDICTED, SHOWN).astype(np.int8)
    states[num_tokens:][masked[num_tokens:]] = HIDDEN
    return states


@dataclass(frozen=True)
class _Row:
    """One row before padding: arrays of one length, and where its predicted and read tokens stand
    (see Views)."""

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    blocks: npt.NDArray[np.int64]
    streams: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    views: npt.NDArray[np.int64]

    def restricted(self, chosen: npt.NDArray[np.bool_]) -> "_Row":
        return replace(
            self, columns=self.columns[chosen], tokens=self.tokens[chosen], views=self.views[chosen]
        )

    def sharing(self, length: int) -> "_Row":
        """The row with its first tokens seen by everyone in it."""
        streams = np.where(np.arange(len(self.streams)) < length, COMMON, self.streams)
        return replace(self, streams=streams)

    def without(self, length: int) -> "_Row":
        """The row without its first tokens, none of which is predicted."""
        names = ("ids", "positions", "blocks", "streams")
        return replace(
            self,
            columns=self.columns - length,
            **{name: getattr(self, name)[length:] for name in names},
        )


def num_layout_tokens(trajectory: Trajectory, plan: Plan, block_size: int, family: Family) -> int:
    """Tokens that this trajectory's rows will have together (for packing micro-batches)."""
    canvas = _canvas_length(trajectory, block_size, family)
    if plan.causal:
        return len(trajectory.prompt_ids) + len(trajectory.response_ids)
    if family.attention == "full":
        return canvas * len(plan.states)
    return canvas + block_size * int(
        _blocks_with(trajectory, block_size, family, plan.states == PREDICTED)[0].sum()
    )


def row_bundles(
    trajectories: Sequence[Trajectory],
    plans: Sequence[Plan],
    block_size: int,
    family: Family,
    group_tokens: int,
) -> tuple[list[list[int]], list[int]]:
    """Indices of neighbours whose rows `build_views` will join, and the tokens of each of those
    rows (for packing micro-batches)."""
    lengths = [
        num_layout_tokens(t, p, block_size, family)
        for t, p in zip(trajectories, plans, strict=True)
    ]
    prompts = [
        _shareable(t, p, block_size, family) for t, p in zip(trajectories, plans, strict=True)
    ]
    bundles: list[list[int]] = []
    totals: list[int] = []
    for index, joins in enumerate(_joins(lengths, prompts, group_tokens)):
        if joins:
            bundles[-1].append(index)
            totals[-1] += lengths[index] - len(prompts[index])
        else:
            bundles.append([index])
            totals.append(lengths[index])
    return bundles, totals


def _shareable(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family
) -> npt.NDArray[np.int32]:
    """The prompt tokens whose hidden states are the same for every response: its whole blocks,
    where attention is block-causal."""
    alone = family.attention == "full" or plan.causal or plan.masked_prompt is not None
    return trajectory.prompt_ids[
        : 0 if alone else len(trajectory.prompt_ids) // block_size * block_size
    ]


def _joins(
    lengths: list[int], prompts: Sequence[npt.NDArray[np.int32]] | None, most: int
) -> list[bool]:
    """Whether each row joins the one before it in rows of at most so many tokens. prompts: only
    rows that begin with the same shareable prompt join, and they hold it once."""
    joins, total = [False] * len(lengths), 0
    for i, length in enumerate(lengths):
        more = length if prompts is None else length - len(prompts[i])
        alike = prompts is None or (
            len(prompts[i]) > 0 and np.array_equal(prompts[i], prompts[i - 1])
        )
        joins[i] = i > 0 and alike and total + more <= most
        total = total + more if joins[i] else length
    return joins


def build_views(
    trajectories: Sequence[Trajectory],
    plans: Sequence[Plan],
    block_size: int,
    family: Family,
    mask_id: int,
    row_tokens: int = 0,
    group_tokens: int = 0,
) -> Views:
    """Lays plans out for one forward pass. Rows are right-padded; `source` counts the given
    trajectories.

    row_tokens: neighbouring rows are put into one as long as it holds no more tokens than that, as
    documents that do not see each other.
    group_tokens: the same for neighbours with one prompt only, which then share one copy of its
    whole blocks (block-causal attention).
    """
    lay_out = _full_rows if family.attention == "full" else _block_rows
    rows: list[_Row] = []
    prompts: list[npt.NDArray[np.int32]] = []
    row_of, source, group, weight, targets = [], [], [], [], []
    rivals: list[tuple[npt.NDArray[np.int64], ...]] = []
    num_groups = 0
    for index, (trajectory, plan) in enumerate(zip(trajectories, plans, strict=True)):
        blocks = grid_blocks(trajectory, block_size, family)
        made = (
            _causal_rows(trajectory, plan, family)
            if plan.causal
            else lay_out(trajectory, plan, block_size, family, mask_id)
        )
        for everyone in made:
            local = _ranks(
                np.zeros_like(everyone.tokens),
                blocks[everyone.tokens] * len(plan.states) + everyone.views,
            )
            contest = local + num_groups
            scored = plan.states[everyone.views, everyone.tokens] == PREDICTED
            if plan.order is not None:
                rivals.append(
                    _contests(
                        everyone,
                        contest,
                        plan.order,
                        scored,
                        len(rows),
                        sum(len(part[0]) for part in rivals),
                    )
                )
            row = everyone.restricted(scored)
            prompts.append(_shareable(trajectory, plan, block_size, family))
            row_of.append(np.full(len(row.tokens), len(rows)))
            rows.append(row)
            source.append(np.full(len(row.tokens), index))
            weight.append(plan.weights[row.views, row.tokens])
            targets.append(trajectory.response_ids[row.tokens].astype(np.int64))
            group.append(contest[scored])
            num_groups += int(local.max(initial=-1)) + 1
    lengths = [len(row.ids) for row in rows]
    joins = (
        _joins(lengths, prompts, group_tokens)
        if group_tokens
        else _joins(lengths, None, row_tokens)
    )
    dropped = np.array(
        [
            len(prompt) if group_tokens and joined else 0
            for prompt, joined in zip(prompts, joins, strict=True)
        ],
        dtype=np.int64,
    )
    if group_tokens:
        rows = [
            row.without(n) if n else row.sharing(len(prompt))
            for row, prompt, n in zip(rows, prompts, dropped, strict=True)
        ]
    row_at, offset, document = _places([len(row.ids) for row in rows], joins)
    width = max(
        (int(start) + len(row.ids) for row, start in zip(rows, offset, strict=True)), default=1
    )
    height = max(
        int(row_at.max(initial=-1)) + 1, 1
    )  # where nothing is masked, one row of padding is passed

    def padded(name: str, fill: int, step: int = 0) -> torch.Tensor:
        out = np.full((height, width), fill, dtype=np.int64)
        for i, row in enumerate(rows):
            values = getattr(row, name)
            out[row_at[i], offset[i] : offset[i] + len(values)] = values + step * document[i]
        return torch.from_numpy(out)

    def flat(parts: list[npt.NDArray[np.int64]]) -> torch.Tensor:
        return (
            torch.from_numpy(np.concatenate(parts).astype(np.int64))
            if parts
            else torch.zeros(0, dtype=torch.int64)
        )

    starts = [np.full(len(row.columns), offset[i]) for i, row in enumerate(rows)]
    return Views(
        input_ids=padded("ids", mask_id),
        layout=Layout(
            padded("positions", 0), padded("blocks", 0), padded("streams", PAD, DOCUMENT)
        ),
        row=torch.from_numpy(row_at)[flat(row_of)],
        column=flat([row.columns for row in rows]) + flat(starts),
        targets=flat(targets),
        source=flat(source),
        token=flat([row.tokens for row in rows]),
        group=flat(group),
        weight=torch.from_numpy(np.concatenate(weight).astype(np.float32))
        if weight
        else torch.zeros(0),
        rivals=_placed(
            Rivals(*(flat(list(part)) for part in zip(*rivals, strict=True))),
            row_at,
            offset - dropped,
        )
        if rivals
        else None,
    )


def _placed(rivals: Rivals, row_at: npt.NDArray[np.int64], shift: npt.NDArray[np.int64]) -> Rivals:
    """Rivals counted by row and its own columns, where those rows ended up."""
    return replace(
        rivals,
        row=torch.from_numpy(row_at)[rivals.row],
        column=rivals.column + torch.from_numpy(shift)[rivals.row],
    )


def _places(lengths: list[int], joins: list[bool]) -> tuple[npt.NDArray[np.int64], ...]:
    """Row, first column and number in the row of each of some rows, of which some join the row of
    the one before them."""
    places: list[tuple[int, int, int]] = []
    end = 0
    for length, joined in zip(lengths, joins, strict=True):
        row, _, number = places[-1] if places else (-1, 0, 0)
        places.append((row, end, number + 1) if joined else (row + 1, 0, 0))
        end = places[-1][1] + length
    row_at, offset, document = np.array(places, dtype=np.int64).reshape(-1, 3).T
    return row_at.copy(), offset, document


def _contests(
    row: _Row,
    contest: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    scored: npt.NDArray[np.bool_],
    row_number: int,
    offset: int,
) -> tuple[npt.NDArray[np.int64], ...]:
    """The fields of `Rivals` for one row, whose first entry will be the `offset`-th of all."""
    by_place = np.lexsort((order[row.tokens], contest))
    starts = np.searchsorted(contest[by_place], contest[by_place])
    entry = np.empty(len(contest), dtype=np.int64)
    entry[by_place] = offset + np.arange(len(contest))
    row_of = np.full(len(contest), row_number)
    return (
        row_of,
        row.columns[by_place],
        contest[by_place],
        np.arange(len(contest)) - starts,
        entry[scored],
    )


def _canvas_length(trajectory: Trajectory, block_size: int, family: Family) -> int:
    """Tokens of the canvas: what the sampler saw, completed to whole training blocks."""
    return (
        block_starts_after(trajectory.canvas_length, block_size)
        if family.attention == "block_causal"
        else trajectory.canvas_length
    )


def _canvas(
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    mask_id: int,
    masked_prompt: npt.NDArray[np.bool_] | None,
) -> npt.NDArray[np.int64]:
    """Prompt, response, and the mask on what the sampler never reached and on the prompt tokens
    that the plan masks."""
    canvas = np.full(_canvas_length(trajectory, block_size, family), mask_id, dtype=np.int64)
    known = np.concatenate([trajectory.prompt_ids, trajectory.response_ids])
    canvas[: len(known)] = known
    if masked_prompt is not None:
        canvas[: len(masked_prompt)][masked_prompt] = mask_id
    return canvas


def _full_rows(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> list[_Row]:
    canvas = _canvas(trajectory, block_size, family, mask_id, plan.masked_prompt)
    prompt, response = len(trajectory.prompt_ids), len(trajectory.response_ids)
    zeros = np.zeros_like(canvas)
    rows = []
    for view, states in enumerate(plan.states):
        ids = canvas.copy()
        ids[prompt : prompt + response][states != SHOWN] = mask_id
        tokens = np.flatnonzero(states >= PREDICTED)
        columns = predictor_positions(torch.from_numpy(prompt + tokens), family).numpy()
        rows.append(
            _Row(
                ids,
                np.arange(len(canvas)),
                zeros,
                zeros + CLEAN,
                columns,
                tokens,
                np.full(len(tokens), view),
            )
        )
    return rows


def _causal_rows(trajectory: Trajectory, plan: Plan, family: Family) -> list[_Row]:
    """Prompt and response, clean, every position a block of its own: it sees itself and what stands
    before it."""
    ids = np.concatenate([trajectory.prompt_ids, trajectory.response_ids]).astype(np.int64)
    positions, tokens = np.arange(len(ids)), np.flatnonzero(plan.states[0] == PREDICTED)
    columns = predictor_positions(
        torch.from_numpy(len(trajectory.prompt_ids) + tokens), family
    ).numpy()
    return [
        _Row(
            ids,
            positions,
            positions,
            np.zeros_like(positions) + CLEAN,
            columns,
            tokens,
            np.zeros_like(tokens),
        )
    ]


def _block_rows(
    trajectory: Trajectory, plan: Plan, block_size: int, family: Family, mask_id: int
) -> list[_Row]:
    """[clean | noisy views], each noisy view only with the blocks in which it predicts something."""
    canvas = _canvas(trajectory, block_size, family, mask_id, plan.masked_prompt)
    prompt, response = len(trajectory.prompt_ids), len(trajectory.response_ids)
    chosen = plan.states >= PREDICTED
    there, numbers = _blocks_with(trajectory, block_size, family, chosen)
    view, block = there.nonzero()
    at = numbers[block][:, None] * block_size + np.arange(
        block_size
    )  # [noisy blocks, K], view by view
    masked = np.zeros((len(plan.states), len(canvas)), dtype=bool)
    masked[:, prompt : prompt + response] = plan.states != SHOWN
    noisy = np.where(masked[view[:, None], at], mask_id, canvas[at])
    where = np.concatenate([np.arange(len(canvas)), at.reshape(-1)])
    streams = np.concatenate([np.full(len(canvas), CLEAN), (view + 1).repeat(block_size)])
    views, tokens = chosen.nonzero()
    nth = there.cumsum().reshape(there.shape) - 1  # of the noisy blocks
    inside = (prompt + tokens) % block_size
    columns = (
        len(canvas)
        + nth[views, (prompt + tokens) // block_size - prompt // block_size] * block_size
        + inside
    )
    return [
        _Row(
            np.concatenate([canvas, noisy.reshape(-1)]),
            where,
            where // block_size,
            streams,
            columns,
            tokens,
            views,
        )
    ]
