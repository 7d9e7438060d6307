"""Left-to-right sampling of autoregressive baselines, with the same draw, noise and records as the
one sampler.

A response is a trajectory of one token per step in blocks of one, so that verification, storage and
figures are the same. Rows are batched with left padding that nobody sees; a row's noise depends on
its own request only.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tracerl.errors import DataError
from tracerl.models.baselines import next_logits, pad_left
from tracerl.sampling.drawing import draw
from tracerl.sampling.sampler import Request, check_prompts
from tracerl.seeds import uniforms
from tracerl.settings.sampling import Sampler
from tracerl.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def sample_autoregressive(
    model: "PreTrainedModel",
    end_ids: Sequence[int],
    requests: Sequence[Request],
    settings: Sampler,
    on_done: Callable[[int], None] | None = None,
    forbidden: Sequence[int] = (),
) -> list[Trajectory]:
    """One trajectory per request, in their order. Of the settings only temperature, filters, limits
    and max_rows have an effect here.

    forbidden: ids that are never drawn, those of `forbidden_ids`. Raises DataError for an empty
    prompt, an id outside the vocabulary, or guidance, and NonFiniteError at the first logits that
    are not finite.
    """
    check_prompts(requests, model.config.get_text_config().vocab_size)
    if settings.guidance:
        raise DataError(
            "an autoregressive model is sampled without guidance",
            where="sampler.guidance",
            got=settings.guidance,
            wanted=0.0,
        )
    excluded = torch.tensor(list(forbidden), dtype=torch.int64, device=model.device)
    results: list[Trajectory] = []
    for start in range(0, len(requests), settings.max_rows):
        batch = requests[start : start + settings.max_rows]
        results += _sample_batch(model, end_ids, excluded, batch, settings)
        if on_done:
            on_done(len(batch))
    return results


def _sample_batch(
    model: "PreTrainedModel",
    end_ids: Sequence[int],
    forbidden: torch.Tensor,
    requests: Sequence[Request],
    settings: Sampler,
) -> list[Trajectory]:
    from transformers import DynamicCache

    device, rows, limit = model.device, len(requests), settings.max_new_tokens
    lengths = torch.tensor([len(request.prompt_ids) for request in requests], device=device)
    ids, seen, positions = pad_left([request.prompt_ids for request in requests], device)
    keys, ends = (
        torch.tensor([request.key for request in requests], device=device),
        torch.tensor(list(end_ids), device=device),
    )
    tokens = torch.zeros(rows, limit, dtype=torch.int64, device=device)
    logprobs = torch.zeros(rows, limit, device=device)
    filtered = torch.zeros(rows, limit, device=device)
    ended, cache = (
        torch.zeros(rows, dtype=torch.bool, device=device),
        DynamicCache(config=model.config),
    )
    for step in range(limit):
        logits = next_logits(
            model,
            forbidden,
            f"token {step + 1}",
            input_ids=ids,
            attention_mask=seen.long(),
            position_ids=positions,
            cache=cache,
            use_cache=True,
        )
        drawn = draw(logits, uniforms(keys, ((step + 1) << 32) + lengths + step), settings)
        tokens[:, step], logprobs[:, step], filtered[:, step] = (
            drawn.tokens,
            drawn.logprobs.float(),
            drawn.filtered_logprobs.float(),
        )
        ended |= torch.isin(drawn.tokens, ends)
        if bool(ended.all()):
            break
        ids, positions = drawn.tokens.unsqueeze(1), positions[:, -1:] + 1
        seen = torch.cat([seen, torch.ones_like(seen[:, :1])], 1)
    found = torch.isin(tokens, ends)
    columns = [tensor.cpu().numpy() for tensor in (tokens, logprobs, filtered, found)]
    return list(map(_trajectory, requests, *columns))


def _trajectory(
    request: Request,
    tokens: np.ndarray,
    logprobs: np.ndarray,
    filtered: np.ndarray,
    ends: np.ndarray,
) -> Trajectory:
    stop = int(ends.argmax()) + 1 if ends.any() else len(tokens)
    return Trajectory(
        prompt_ids=np.array(request.prompt_ids, dtype=np.int32),
        response_ids=tokens[:stop].astype(np.int32),
        step_map=np.arange(1, stop + 1, dtype=np.int32),
        logprobs=logprobs[:stop].copy(),
        filtered_logprobs=filtered[:stop].copy(),
        num_tokens=stop,
        block_size=1,
        canvas_length=len(request.prompt_ids) + stop,
        stop_reason="end" if ends.any() else "length",
        num_denoising_forwards=stop,
        num_forwards=stop,
    )
