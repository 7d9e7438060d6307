"""Advantages and the group filter against hand-computed groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracerl.objectives.advantages import (
    chunk_advantages,
    chunk_rewards,
    group_advantages,
    keeps_group,
)

KINDS = ("group", "mean", "rloo")


@pytest.mark.parametrize(
    ("kind", "rewards", "advantages"),
    [
        ("group", [1, 0, 0, 1], [1, -1, -1, 1]),
        # Population deviation sqrt(3)/4.
        (
            "group",
            [1, 0, 0, 0],
            [3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)],
        ),
        ("group", [1, 1, 1], [0, 0, 0]),
        ("mean", [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ("rloo", [1, 0], [1, -1]),
        ("rloo", [0.5, 0.2, 0.8], [0, -0.45, 0.45]),
    ],
)
def test_advantages_of_a_group(kind, rewards, advantages):
    assert group_advantages(kind, np.array(rewards, dtype=float)).tolist() == pytest.approx(
        advantages
    )


rewards_of_groups = st.lists(
    st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=12
).map(np.array)


@given(rewards=rewards_of_groups)
@settings(derandomize=True, deadline=None)
def test_advantages_sum_to_nothing_and_keep_the_order_of_the_rewards(rewards):
    for kind in KINDS:
        advantages = group_advantages(kind, rewards)
        assert advantages.sum() == pytest.approx(0, abs=1e-9)
        order = np.argsort(rewards, kind="stable")
        assert (np.diff(advantages[order]) >= 0).all()


@given(rewards=rewards_of_groups)
@settings(derandomize=True, deadline=None)
def test_leave_one_out_is_each_reward_less_the_mean_of_the_others(rewards):
    wanted = [reward - np.delete(rewards, i).mean() for i, reward in enumerate(rewards)]
    assert group_advantages("rloo", rewards).tolist() == pytest.approx(wanted, abs=1e-9)


@given(rewards=rewards_of_groups.filter(lambda r: r.std() > 1e-6))
@settings(derandomize=True, deadline=None)
def test_z_scores_have_unit_deviation(rewards):
    assert group_advantages("group", rewards).std() == pytest.approx(1)


@given(reward=st.floats(-10, 10), size=st.integers(2, 12))
@settings(derandomize=True, deadline=None)
def test_equal_rewards_give_no_advantage(reward, size):
    """Whatever the reward: the mean of equal numbers need not be that number in floating point."""
    for kind in KINDS:
        assert group_advantages(kind, np.full(size, reward)).tolist() == pytest.approx(
            [0.0] * size, abs=1e-12
        )


@pytest.mark.parametrize(
    ("num_correct", "kept"),
    [(0, False), (1, False), (2, True), (5, True), (8, True), (9, False), (10, False)],
)
def test_binary_groups_are_kept_inside_the_pass_rates_bounds_included(num_correct, kept):
    rewards = np.array([1.0] * num_correct + [0.0] * (10 - num_correct))
    assert keeps_group(rewards, (0.2, 0.8), graded=False) is kept
    assert keeps_group(2.0 * rewards, (0.2, 0.8), graded=False) is kept, (
        "whatever a correct response is paid"
    )


@pytest.mark.parametrize("size", [2, 3, 5, 7, 10, 16])
def test_a_pass_rate_that_is_a_bound_lies_inside(size):
    for num_correct in range(size + 1):
        rewards, rate = (
            np.array([1.0] * num_correct + [0.0] * (size - num_correct)),
            num_correct / size,
        )
        assert keeps_group(rewards, (rate, rate), graded=False)
        assert keeps_group(rewards, (0.0, 1.0), graded=False)
        assert keeps_group(rewards, (0.001, 0.999), graded=False) is (0 < num_correct < size)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([0.5, 0.5, 0.5], False),
        ([0.5, 0.25], True),
        ([0.0, 0.1, 0.0, 0.0], True),
        ([1.0, 1.0, 0.9], True),
        # As much is said of them as of 0.1: only a binary reward has a pass rate.
        (
            [0.0, 0.0, 0.0, 1.0],
            True,
        ),
        ([0.0, 0.0], False),
        ([1.0, 1.0], False),
    ],
)
def test_graded_groups_are_kept_unless_all_their_rewards_are_equal(rewards, kept):
    assert keeps_group(np.array(rewards), (0.4, 0.6), graded=True) is kept


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("rewards", [[], [1.0], [0.5]])
def test_a_group_with_fewer_than_two_decided_responses_says_nothing(rewards, graded):
    assert not keeps_group(np.array(rewards), (0.0, 1.0), graded)


# Chunks


def test_chunks_are_standardised_with_those_at_their_place():
    nan = float("nan")
    scores = [
        np.array([1.0, 1.0, -1.0]),
        np.array([-1.0, 1.0]),
        np.array([nan, 1.0]),
        np.array([0.0]),
    ]
    third = 1.5**0.5  # deviation of 1, -1, 0 is sqrt(2/3)
    standard = chunk_advantages("group", scores)
    assert [row.tolist() for row in standard] == [
        [pytest.approx(third), 0.0, 0.0],
        [pytest.approx(-third), 0.0],
        [0.0, 0.0],
        [0.0],
    ]
    assert [row.tolist() for row in chunk_advantages("mean", scores)] == [
        [1.0, 0.0, 0.0],
        [-1.0, 0.0],
        [0.0, 0.0],
        [0.0],
    ]
    assert [row.tolist() for row in chunk_advantages("rloo", scores)] == [
        [1.5, 0.0, 0.0],
        [-1.5, 0.0],
        [0.0, 0.0],
        [0.0],
    ]


def test_a_chunk_is_paid_on_the_last_step_inside_it():
    steps = np.array([0, 2, 1, 1, 3, 2])
    assert chunk_rewards(np.array([0.5, 0.0, -1.0]), np.array([2, 4, 6]), steps).tolist() == [
        0.0,
        0.5,
        0.0,
        0.0,
        -1.0,
        0.5,
    ]
    # Both chunks end in step 2: it is paid for both.
    assert chunk_rewards(
        np.array([0.5, -1.0]), np.array([2, 6]), np.array([0, 2, 1, 1, 2, 0])
    ).tolist() == [0.0, -0.5, 0.0, 0.0, -0.5, 0.0]


@given(data=st.data())
@settings(derandomize=True, deadline=None)
def test_no_process_reward_is_lost_or_made(data):
    """The rewards of the steps add up to those of the chunks, whatever steps and chunks there
    are."""
    size = data.draw(st.integers(1, 12))
    steps = np.unique(
        data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), return_inverse=True
    )[1].reshape(-1)
    ends = np.array(sorted({*data.draw(st.sets(st.integers(1, size))), size}))
    rewards = np.array(
        data.draw(st.lists(st.floats(-3, 3), min_size=len(ends), max_size=len(ends)))
    )
    paid = chunk_rewards(rewards, ends, steps)
    assert sum(paid[steps == step].mean() for step in range(steps.max() + 1)) == pytest.approx(
        rewards.sum(), abs=1e-9
    )
    assert all(len(set(paid[steps == step])) == 1 for step in range(steps.max() + 1))


# Rounding


def test_rewards_that_differ_by_rounding_are_equal():
    """0.1 + 0.2 + 0.4 and 0.3 + 0.4 are the same reward of two wrong responses."""
    sums = np.array([0.1 + 0.2 + 0.4, 0.3 + 0.4])
    assert sums[0] != sums[1]
    assert not keeps_group(sums, (0.0, 1.0), graded=True)
    ulp = np.array([0.95] * 7 + [np.nextafter(0.95, 1.0)])
    large = np.array([1e6 * 0.7, 1e6 * np.nextafter(0.7, 1.0)])
    for rewards in (sums, ulp, large):
        for kind in ("group", "mean", "rloo"):
            assert group_advantages(kind, rewards).tolist() == [0.0] * len(rewards)
            chunks = [np.array([reward]) for reward in rewards]
            assert [row.tolist() for row in chunk_advantages(kind, chunks)] == [[0.0]] * len(
                rewards
            )
    assert keeps_group(np.array([0.7, 0.7001]), (0.0, 1.0), graded=True)
    assert group_advantages("group", np.array([0.7, 0.7001])) == pytest.approx([-1.0, 1.0])
