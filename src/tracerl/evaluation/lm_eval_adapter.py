"""lm-evaluation-harness drives our models: `simple_evaluate(model=TracerlLM(...), tasks=[...])`.
Needs the extra `lm-eval`.

Only generation is served. A diffusion model has no exact likelihood of a continuation, and a bound
in its place would be compared with other models' exact values under one name, so likelihood
requests are refused.

    from lm_eval import simple_evaluate from tracerl.evaluation.lm_eval_adapter import TracerlLM
    simple_evaluate(model=TracerlLM(Path("data/checkpoints/rl@wide"),
    params.evaluate["wide"].sampler, seed=1), tasks=["gsm8k"])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lm_eval.api.model import LM

from tracerl.errors import DataError
from tracerl.models.checkpoint import load_checkpoint
from tracerl.sampling.sampler import Request, sample
from tracerl.seeds import key_for
from tracerl.settings.sampling import Sampler


class TracerlLM(LM):  # type: ignore[misc]
    """A checkpoint with sampler settings. Contexts are rendered by the checkpoint's own chat
    template if `chat`, else taken as they are.

    The harness's generation settings other than `until` are not used: the sampler says how it
    samples, and is what is reported.
    """

    def __init__(self, checkpoint: Path, sampler: Sampler, seed: int, chat: bool = True) -> None:
        super().__init__()
        self.model, self.tokenizer = load_checkpoint(checkpoint)
        self.sampler, self.seed, self.chat = sampler, seed, chat

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """One response per request, cut before the first of its stop texts. A response's noise
        depends on its context and repeat only."""
        encode = self.tokenizer.prompt_ids if self.chat else self.tokenizer.encode
        repeats: dict[str, int] = {}
        made = []
        for request in requests:
            context = request.args[0]
            repeats[context] = repeats.get(context, -1) + 1
            made.append(
                Request(encode(context), key_for(self.seed, "lm-eval", context, repeats[context]))
            )
        trajectories = sample(self.model.eval(), self.tokenizer.end_ids, made, self.sampler, None)
        responses = []
        for trajectory, request in zip(trajectories, requests, strict=True):
            ids = trajectory.response_ids[: trajectory.num_tokens]
            text = self.tokenizer.decode(ids.tolist())
            responses.append(_cut(text, request.args[1].get("until", ())))
        return responses

    def loglikelihood(self, requests: Sequence[Any]) -> NoReturn:
        """Refused; see the module's head."""
        raise DataError(
            "a diffusion model has no exact likelihood of a continuation",
            wanted="generative tasks (generate_until)",
        )

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> NoReturn:
        """Refused; see the module's head."""
        self.loglikelihood(requests)


def _cut(text: str, until: Sequence[str] | str) -> str:
    stops = [until] if isinstance(until, str) else until
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(places, default=len(text))]
