"""Attention in chunks is attention over the mask, forwards and backwards, and never makes the
mask."""

import pytest
import torch

from tests.tiny import END_IDS, MASK_ID, RULES, sharp_model, tiny_requests, tiny_sampler
from tracerl.models import sparse
from tracerl.models.attention import Backend, Chunks, attend, prepare
from tracerl.models.masks import CLEAN, DOCUMENT, PAD, Layout
from tracerl.objectives.likelihood import token_logprobs
from tracerl.objectives.plans import trace_plan
from tracerl.objectives.views import build_views
from tracerl.sampling.sampler import sample


def training_layout(
    length: int, block_size: int, views: int, padding: int, documents: int = 1
) -> Layout:
    """[clean | noisy views] per document, then padding; the second row is the first half of the
    first, padded further."""
    at = torch.arange(length)
    positions = torch.cat(
        [at.repeat(views + 1)] * documents + [torch.zeros(padding, dtype=torch.int64)]
    )
    streams = [
        torch.arange(views + 1).repeat_interleave(length) + DOCUMENT * i for i in range(documents)
    ]
    stream = torch.cat([*streams, torch.full((padding,), PAD)])
    shorter = stream.clone()
    shorter[len(stream) // 2 :] = PAD
    return Layout(
        positions.expand(2, -1),
        (positions // block_size).expand(2, -1),
        torch.stack([stream, shorter]),
    )


BACKENDS: list[Backend] = ["sdpa", "sparse"]
LAYOUTS = {
    "views": training_layout(48, 4, 3, 5),
    "documents": training_layout(24, 8, 2, 9, documents=2),
    "full": Layout(
        torch.arange(70).expand(2, -1),
        torch.zeros(2, 70, dtype=torch.int64),
        torch.full((2, 70), CLEAN),
    ),
    "causal": Layout(
        torch.arange(40).expand(2, -1), torch.arange(40).expand(2, -1), torch.full((2, 40), CLEAN)
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_real_query_lies_in_one_chunk_and_no_chunk_is_longer_than_its_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sparse, "CHUNK", 16)
    layout = LAYOUTS[name]
    count = torch.zeros_like(layout.streams)
    for chunk in sparse.chunks_of(layout.blocks, layout.streams):
        assert 0 < chunk.stop - chunk.start <= 16
        count[chunk.row, chunk.start : chunk.stop] += 1
    assert torch.equal(count, (layout.streams != PAD).to(count.dtype))


@pytest.mark.parametrize("chunk", [16, 128])
@pytest.mark.parametrize("name", LAYOUTS)
def test_chunks_give_the_output_and_the_gradients_of_the_mask(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sparse, "CHUNK", chunk)
    layout, generator = LAYOUTS[name], torch.Generator().manual_seed(1)
    rows, length = layout.streams.shape
    shape = {"query": 4, "key": 2, "value": 2}
    given = [
        torch.randn(rows, heads, length, 8, dtype=torch.float64, generator=generator)
        for heads in shape.values()
    ]
    upstream = torch.randn(rows, 4, length, 8, dtype=torch.float64, generator=generator)
    real = (layout.streams != PAD)[:, None, :, None].to(torch.float64)
    found = []
    for backend in BACKENDS:
        leaves = [part.clone().requires_grad_() for part in given]
        query, key, value = leaves
        out = attend(query, key, value, prepare(layout, backend, torch.float64)) * real
        (out * upstream).sum().backward()
        found.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert float(one.abs().max()) > 0.1


def test_sums_are_in_float32_where_the_model_is_in_bfloat16():
    layout, generator = LAYOUTS["views"], torch.Generator().manual_seed(1)
    rows, length = layout.streams.shape
    given = [
        torch.randn(rows, heads, length, 8, generator=generator).bfloat16() for heads in (4, 2, 2)
    ]
    prepared = prepare(layout, "sparse", torch.bfloat16)
    out = attend(*given, prepared)  # type: ignore[call-arg]
    assert out.dtype == torch.bfloat16
    wide = attend(*(part.float() for part in given), prepared)  # type: ignore[call-arg]
    assert torch.equal(out, wide.bfloat16())


def test_the_gradient_of_a_chunk_is_that_of_finite_differences(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sparse, "CHUNK", 4)
    layout = training_layout(4, 2, 1, 1)
    chunks = sparse.chunks_of(layout.blocks, layout.streams)
    given = [
        torch.randn(2, heads, 9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(i))
        for i, heads in enumerate((2, 1, 1))
    ]

    def attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return sparse.attend_chunks(query, key, value, chunks)

    assert torch.autograd.gradcheck(attended, [part.requires_grad_() for part in given])


def test_what_is_kept_of_a_layout_grows_with_its_length():
    """Columns and masks of the chunks: twice the length, twice as many numbers (one chunk's share
    aside)."""
    sizes = []
    for length in (512, 1024, 2048):
        layout = training_layout(length, 4, 4, 0)
        chunks = sparse.chunks_of(layout.blocks[:1], layout.streams[:1])
        assert {
            (chunk.row, len(chunk.ranges) <= 1, chunk.stop - chunk.start) for chunk in chunks
        } == {(0, True, sparse.CHUNK)}
        sizes.append(sum(chunk.mask.numel() + chunk.columns.numel() for chunk in chunks))
    assert sizes[1] / sizes[0] == sizes[2] / sizes[1] == 2


@pytest.mark.parametrize("family", RULES)
def test_likelihoods_do_not_depend_on_the_back_end(family: str):
    model = sharp_model(family, torch.float64)
    trajectories = sample(model, END_IDS, tiny_requests([3, 6, 9]), tiny_sampler())
    views = build_views(
        trajectories,
        [trace_plan(t, 4, model.family, shrink=1) for t in trajectories],
        4,
        model.family,
        MASK_ID,
    )
    found = []
    for backend in BACKENDS:
        model.attention = backend
        logprobs = token_logprobs(model, views, 0.7)
        found.append([logprobs, *torch.autograd.grad(logprobs.sum(), list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_auto_takes_chunks_for_long_layouts_only():
    for length, kind in ((1023, torch.Tensor), (1024, Chunks)):
        rows = torch.zeros(1, length, dtype=torch.int64)
        assert isinstance(prepare(Layout(rows, rows, rows), "auto", torch.float32), kind)
