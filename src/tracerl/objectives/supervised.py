"""What supervised training predicts of an example; a new objective is a record in
settings/training.py and an entry here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracerl.models.families import Attention, Family
from tracerl.objectives.plans import (
    Masking,
    Plan,
    causal_plan,
    coupled_plan,
    random_plan,
    semi_ar_plan,
    trace_plan,
)
from tracerl.settings.base import Section
from tracerl.settings.training import (
    AdaptObjective,
    ArObjective,
    Objective,
    RandomObjective,
    SemiArObjective,
    TraceObjective,
)
from tracerl.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class _ExampleViews:
    """What an objective makes of an example."""

    plan: Callable[[Any, Trajectory, int, Family, np.random.Generator], Plan]
    """(objective, trajectory, block size, family, generator) -> its views."""
    num_views: Callable[[Any, Attention, int, int], int]
    """(objective, attention, block size, tokens) -> views of an example, at most."""
    passes_clean_copy: bool = True
    """Whether block-causal views come behind a clean copy of the example."""


def make_plan(
    objective: Objective,
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    """The views of an example. Fresh noise comes from the generator."""
    return _EXAMPLE_VIEWS[type(objective)].plan(
        objective, trajectory, block_size, family, generator
    )


def num_tokens(objective: Objective, attention: Attention, block_size: int, length: int) -> int:
    """Tokens of the rows of an example of `length` tokens, at most: a canvas for each view, or,
    where attention is block-causal, one clean copy and the views behind it."""
    views = _EXAMPLE_VIEWS[type(objective)]
    copies = views.num_views(objective, attention, block_size, length)
    if attention == "block_causal" and views.passes_clean_copy:
        copies += 1
    return copies * length


def _random(
    objective: RandomObjective,
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    return random_plan(trajectory, _masking(objective, block_size, family), generator)


def _semi_ar(
    objective: SemiArObjective,
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    return semi_ar_plan(trajectory, _masking(objective, block_size, family), generator)


def _trace(
    objective: TraceObjective,
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    return trace_plan(trajectory, block_size, family, objective.shrink)


def _ar(
    objective: ArObjective,
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    return causal_plan(trajectory)


def _adapt(
    objective: AdaptObjective,
    trajectory: Trajectory,
    block_size: int,
    family: Family,
    generator: np.random.Generator,
) -> Plan:
    if (block_size == 1 and family.shift) or generator.random() < objective.clean:
        return causal_plan(trajectory)
    masking = _masking(objective, block_size, family)
    if objective.complementary:
        return coupled_plan(trajectory, masking, generator)
    return random_plan(trajectory, masking, generator)


def _masking(
    objective: RandomObjective | SemiArObjective | AdaptObjective, block_size: int, family: Family
) -> Masking:
    return Masking(
        block_size=block_size,
        family=family,
        noise=objective.noise,
        weighting=objective.weighting,
    )


def _one_view(objective: Objective, attention: Attention, block_size: int, tokens: int) -> int:
    return 1


def _adapt_views(
    objective: AdaptObjective, attention: Attention, block_size: int, tokens: int
) -> int:
    return 2 if objective.complementary else 1


def _view_per_block(
    objective: SemiArObjective, attention: Attention, block_size: int, tokens: int
) -> int:
    return 1 if attention == "block_causal" else -(-tokens // block_size)


def _view_per_step(
    objective: TraceObjective, attention: Attention, block_size: int, tokens: int
) -> int:
    return num_trace_views(attention, block_size, objective.shrink, tokens)


def num_trace_views(attention: Attention, block_size: int, shrink: int, tokens: int) -> int:
    """Views of a trajectory that committed a token a step."""
    return -(-(tokens if attention == "full" else block_size) // shrink)


_EXAMPLE_VIEWS: dict[type[Section], _ExampleViews] = {
    RandomObjective: _ExampleViews(plan=_random, num_views=_one_view),
    SemiArObjective: _ExampleViews(plan=_semi_ar, num_views=_view_per_block),
    TraceObjective: _ExampleViews(plan=_trace, num_views=_view_per_step),
    ArObjective: _ExampleViews(plan=_ar, num_views=_one_view, passes_clean_copy=False),
    AdaptObjective: _ExampleViews(plan=_adapt, num_views=_adapt_views),
}
