"""A judge that is a local autoregressive checkpoint (Qwen, Llama): how much likelier than No is
Yes, as the first token of its answer.

The score is (p_yes - p_no) / (p_yes + p_no), both summed over the ways to begin the word; nothing
is sampled. Where yes and no together have less probability than `min_mass`, the model has something
else to say, and the question is undecided.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tracerl.errors import CheckpointError, DataError
from tracerl.models.baselines import is_baseline, load_baseline, next_logits, pad_left
from tracerl.models.checkpoint import forbidden_ids
from tracerl.models.tokenizer import Tokenizer
from tracerl.rewards.judges.questions import Answer, Judge, Question, prompt_of
from tracerl.settings.models import Compute
from tracerl.settings.rewards import ModelJudge

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_WORDS = {"yes": ("Yes", "yes", " Yes", " yes", "YES"), "no": ("No", "no", " No", " no", "NO")}
_CLOSING = "Answer with one word, Yes or No."


def model_judge(settings: ModelJudge, directory: Path, compute: Compute) -> Judge:
    """Loads the checkpoint of `directory`. Raises CheckpointError if it is no autoregressive one or
    has no tokens for yes and no. The judge raises NonFiniteError for logits that are not finite;
    ids without a token have no probability."""
    if not is_baseline(directory):
        raise CheckpointError(
            "a judge's checkpoint is not an autoregressive one",
            where=str(directory),
            wanted="config.json of a Qwen or Llama model, and its safetensors",
        )
    model, tokenizer = load_baseline(directory, compute)
    words = answer_tokens(tokenizer, directory)
    without_token = forbidden_ids(model.config.get_text_config().vocab_size, tokenizer)
    forbidden = torch.tensor(without_token, dtype=torch.int64, device=model.device)
    added = tokenizer.file.get_added_tokens_decoder().values()
    controls = [token.content for token in added if token.special or token.content.startswith("<")]

    def ask(questions: Sequence[Question]) -> list[Answer]:
        answers: list[Answer] = [Answer(score=None, reason="")] * len(questions)
        prompts = {}
        for place, question in enumerate(questions):
            try:
                content = harmless(prompt_of(question, settings.instructions, _CLOSING), controls)
                prompts[place] = tokenizer.chat_ids([{"role": "user", "content": content}])
            except DataError:
                answers[place] = Answer(
                    score=None, reason="the judge's tokenizer cannot write the question"
                )
                continue
            if len(prompts[place]) > settings.max_prompt_tokens:
                answers[place] = Answer(
                    score=None, reason=f"the question has {len(prompts.pop(place))} tokens"
                )
        # By length, so that little is padded; the order is a function of the questions.
        places, rows = (
            sorted(prompts, key=lambda place: (len(prompts[place]), place)),
            settings.max_rows,
        )
        for start in range(0, len(places), rows):
            batch = places[start : start + rows]
            batch_prompts = [prompts[place] for place in batch]
            scores = _scores(model, batch_prompts, forbidden, words, settings.min_mass)
            for place, score in zip(batch, scores, strict=True):
                answers[place] = score
        return answers

    return ask


def harmless(text: str, controls: Sequence[str]) -> str:
    """A text in which no control token is spelt out: a response that wrote one would end the user's
    turn and go on as the judge."""
    for control in controls:
        if len(control) > 1:
            text = text.replace(control, f"{control[0]} {control[1:]}")
    return text


def answer_tokens(tokenizer: Tokenizer, directory: Path) -> tuple[list[int], list[int]]:
    """First tokens of the ways to write yes and no. Those that begin both are left out."""
    first: dict[str, set[int]] = {"yes": set(), "no": set()}
    for word, ways in _WORDS.items():
        for way in ways:
            try:
                first[word].add(tokenizer.encode(way)[0])
            except (DataError, IndexError):
                continue
    yes, no = sorted(first["yes"] - first["no"]), sorted(first["no"] - first["yes"])
    if not yes or not no:
        raise CheckpointError(
            "a judge's tokenizer has no tokens that tell yes from no",
            where=str(directory),
            got=first,
        )
    return yes, no


@torch.inference_mode()
def _scores(
    model: "PreTrainedModel",
    prompts: Sequence[Sequence[int]],
    forbidden: torch.Tensor,
    words: tuple[list[int], list[int]],
    min_mass: float,
) -> list[Answer]:
    """Scores of prompts. words: first tokens of yes and of no."""
    yes, no = words
    ids, attention, positions = pad_left(prompts, model.device)
    logits = next_logits(
        model,
        forbidden,
        "a judge's questions",
        input_ids=ids,
        attention_mask=attention.long(),
        position_ids=positions,
        use_cache=False,
    )
    chances = logits.double().softmax(-1)
    p_yes, p_no = (chances[:, tokens].sum(-1) for tokens in (yes, no))
    answers = []
    for ours, theirs in zip(p_yes.tolist(), p_no.tolist(), strict=True):
        mass = ours + theirs
        if mass <= 0.0 or mass < min_mass:
            answers.append(Answer(score=None, reason=f"yes and no have probability {mass:.3g}"))
        else:
            answers.append(Answer(score=(ours - theirs) / mass))
    return answers
