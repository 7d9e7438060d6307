"""What the engine promises beside its responses: memory it keeps to, prompts passed once, one wait
a step, few shapes on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny import (
    APPROXIMATE,
    END_IDS,
    FULL_ATTENTION,
    RULES,
    sharp_model,
    tiny_requests,
    tiny_sampler,
)
from tracerl.errors import DataError
from tracerl.models.families import FAMILIES
from tracerl.models.masks import Layout
from tracerl.models.policy import Policy
from tracerl.models.transformer import CacheWindow
from tracerl.sampling.sampler import Request, _Engine, sample
from tracerl.seeds import key_for
from tracerl.types import Trajectory

MODELS = {family: sharp_model(family, torch.float64) for family in RULES}
CACHES = [
    ("sdar", {"cache": "exact"}),
    *((family, changes) for family in FULL_ATTENTION for changes in APPROXIMATE.values()),
]
LENGTHS = [3, 9, 6, 17, 12, 5, 8]
# 17 prompt tokens and 12 new ones in whole blocks, which lie on the grid or start at the response.
LONGEST = {
    "block_causal": 32,
    "full": 29,
}


def assert_same(one: list[Trajectory], other: list[Trajectory]) -> None:
    for a, b in zip(one, other, strict=True):
        for name, value in asdict(a).items():
            np.testing.assert_array_equal(value, getattr(b, name), err_msg=name)


def groups(lengths: list[int], samples: int) -> list[Request]:
    """`samples` requests for each of some prompts, next to each other."""
    return [
        Request(r.prompt_ids, key_for(7, i, s))
        for i, r in enumerate(tiny_requests(lengths))
        for s in range(samples)
    ]


@contextmanager
def watched(model: Policy) -> Iterator[list[tuple[torch.Tensor, Layout, CacheWindow | None]]]:
    """The arguments of the model's passes."""
    passes: list[tuple[torch.Tensor, Layout, CacheWindow | None]] = []
    handle = model.register_forward_pre_hook(
        lambda module, arguments: passes.append((*arguments, None)[:3])
    )
    yield passes
    handle.remove()


# Memory


@pytest.mark.parametrize(
    ("family", "changes", "rows"), [(*CACHES[0], 1), *((*case, 2) for case in CACHES)], ids=str
)
def test_a_small_cache_makes_rows_wait_and_changes_nothing(
    family: str, changes: dict[str, Any], rows: int
):
    model, requests, longest = (
        MODELS[family],
        tiny_requests(LENGTHS),
        LONGEST[FAMILIES[family].attention],
    )
    roomy = sample(model, END_IDS, requests, tiny_sampler(**changes))
    with watched(model) as passes:
        tight = sample(
            model,
            END_IDS,
            requests,
            tiny_sampler(cache_tokens=rows * longest + longest - 1, **changes),
        )
    assert max(len(ids) for ids, _, _ in passes) == rows
    assert {len(window.cache.keys[0]) for _, _, window in passes if window} == {rows}
    assert_same(roomy, tight)


@pytest.mark.parametrize(
    ("family", "changes"), [("sdar", {"cache": "exact"}), ("llada", {"cache": "dual"})]
)
def test_a_request_for_which_there_is_never_room_is_refused_before_anything_is_sampled(
    family: str, changes: dict[str, Any]
):
    model = MODELS[family]
    told: list[int] = []
    with (
        watched(model) as passes,
        pytest.raises(
            DataError, match=r"(?s)cache_tokens, request 3.*got: 28.*a prompt of 17 tokens"
        ),
    ):
        sample(
            model,
            END_IDS,
            tiny_requests(LENGTHS),
            tiny_sampler(cache_tokens=28, **changes),
            told.append,
        )
    assert (passes, told) == ([], [])


def test_without_a_cache_its_size_says_nothing():
    requests = tiny_requests(LENGTHS)
    assert_same(
        *(
            sample(MODELS["llada"], END_IDS, requests, tiny_sampler(cache_tokens=n))
            for n in (1, None)
        )
    )


# Prompts


@pytest.mark.parametrize(("rows", "interleaved"), [(1, False), (2, True), (3, False), (100, True)])
def test_a_prompt_is_passed_once_however_often_it_is_sampled(rows: int, interleaved: bool):
    model, lengths = MODELS["sdar"], [3, 9, 17, 8]
    requests = groups(lengths, 3)
    order = (
        sorted(range(len(requests)), key=lambda i: i % 3) if interleaved else range(len(requests))
    )
    without = sample(model, END_IDS, [requests[i] for i in order], tiny_sampler(cache="none"))
    with watched(model) as passes:
        together = sample(
            model, END_IDS, [requests[i] for i in order], tiny_sampler(cache="exact", max_rows=rows)
        )
    for one, other in zip(without, together, strict=True):
        assert (one.response_ids.tolist(), one.step_map.tolist()) == (
            other.response_ids.tolist(),
            other.step_map.tolist(),
        )
    prefilled = [
        int((layout.streams >= 0).sum())
        for _, layout, window in passes
        if window is not None and not window.length
    ]
    assert sum(prefilled) == sum(length // 4 * 4 for length in lengths)


def test_prompts_that_differ_in_their_last_block_only_share_the_others():
    model, [request] = MODELS["sdar"], tiny_requests([11])
    requests = [Request([*request.prompt_ids[:8], token, token], token) for token in range(3, 9)]
    with watched(model) as passes:
        together = sample(model, END_IDS, requests, tiny_sampler(cache="exact", max_rows=2))
    assert sum(1 for _, _, window in passes if window is not None and not window.length) == 1
    assert_same(
        [sample(model, END_IDS, [request], tiny_sampler(cache="exact"))[0] for request in requests],
        together,
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_prompt_is_copied_before_its_slot_is_given_to_another(seed: int):
    """Many prompts and few slots: the keys of a prompt often lie in a slot that is filled anew at
    the same time."""
    model, prompts = MODELS["sdar"], [r.prompt_ids for r in tiny_requests([9] * 12, seed=seed)]
    order = np.random.default_rng(seed).permutation(len(prompts) * 4)
    requests = [Request(prompts[i // 4], key_for(seed, i)) for i in order]
    roomy = sample(model, (18, 17, 16, 15), requests, tiny_sampler(cache="exact", max_rows=200))
    for rows in (4, 6):
        assert_same(
            sample(model, (18, 17, 16, 15), requests, tiny_sampler(cache="exact", max_rows=rows)),
            roomy,
        )


def test_a_guided_prompt_is_passed_once_in_each_world():
    model, requests, settings = (
        MODELS["sdar"],
        groups([9, 6], 3),
        tiny_sampler(cache="exact", guidance=0.5, max_rows=2),
    )
    with watched(model) as passes:
        together = sample(model, END_IDS, requests, settings)
    assert sum(1 for _, _, window in passes if window is not None and not window.length) == 4
    assert_same([sample(model, END_IDS, [request], settings)[0] for request in requests], together)


# Waits and shapes


class _Waits(TorchDispatchMode):
    """Counts the operations whose result the host has to wait for. Reads, which the CPU does
    without one, are counted apart."""

    NAMES = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "unique",
        "equal",
        "repeat_interleave.Tensor",
    )

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(function)
        indices = args[1] if len(args) > 1 and isinstance(args[1], list) else []
        masks = name.startswith("aten.index") and any(
            isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in indices
        )
        if masks or any(
            name.removeprefix("aten.").removeprefix("_").startswith(wait.removeprefix("_"))
            for wait in self.NAMES
        ):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("sdar", {"cache": "exact", "remasking": "dynamic"}),
        ("sdar", {"cache": "exact", "remasking": "plackett_luce", "guidance": 0.5}),
        ("sdar", {"cache": "none", "top_k": 5, "top_p": 0.9, "temperature": 0.7}),
        ("dream", {**APPROXIMATE["cut"], "schedule": "dream"}),
        ("llada", {**APPROXIMATE["prefix"], "refresh_every": 2, "remasking": "dynamic"}),
    ],
    ids=str,
)
def test_the_host_waits_for_the_device_once_a_step(
    family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    steps, reads = 0, 0
    step, read = _Engine.step, _Engine._read

    def counted_step(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(*arguments)

    def counted_read(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*arguments)

    monkeypatch.setattr("tracerl.sampling.sampler._Engine.step", counted_step)
    monkeypatch.setattr("tracerl.sampling.sampler._Engine._read", counted_read)
    with _Waits() as waits:
        torch.ones(2).nonzero()
        assert waits.found == ["aten.nonzero.default"], "it sees what it should"
        waits.found.clear()
        sample(
            MODELS[family],
            END_IDS,
            tiny_requests([3, 9, 6, 17]),
            tiny_sampler(max_rows=3, **changes),
        )
    assert waits.found == []
    assert 0 < reads <= steps


@pytest.mark.parametrize(
    ("family", "changes"), [*CACHES, ("sdar", {"cache": "exact", "guidance": 0.5})], ids=str
)
def test_static_shapes_are_few_and_change_nothing(
    family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    model, requests, settings = (
        MODELS[family],
        groups(LENGTHS, 2),
        tiny_sampler(max_rows=4, **changes),
    )
    small = sample(model, END_IDS, requests, settings)
    monkeypatch.setattr("tracerl.sampling.sampler.static_shapes", lambda device: True)
    with watched(model) as passes:
        static = sample(model, END_IDS, requests, settings)
    for one, other in zip(
        small, static, strict=True
    ):  # float64, but other shapes round differently, which float32 records can show
        assert (one.response_ids.tolist(), one.step_map.tolist()) == (
            other.response_ids.tolist(),
            other.step_map.tolist(),
        )
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-6)
    if family == "sdar":
        shapes = {
            (ids.shape, window.length)
            for ids, _, window in passes
            if window is not None and window.length
        }
        assert shapes == {((4, 4), 32)}


def test_the_head_is_applied_to_masked_positions_only():
    model, rows = MODELS["sdar"], []
    handle = model.lm_head.register_forward_pre_hook(
        lambda module, arguments: rows.append(len(arguments[0]))
    )
    sample(model, (), tiny_requests([4, 4, 6]), tiny_sampler(cache="exact"))
    handle.remove()
    assert sum(rows) == 2 * 3 * (4 + 3 + 2 + 1) + (2 + 1) + 3 * 10
