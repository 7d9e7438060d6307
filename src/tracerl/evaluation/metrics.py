"""Numbers that describe a set of judged responses. Pure functions; the report, the RL curves and
the result table all use these."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracerl.seeds import generator_for

_ODD = ("timeout", "error", "output", "ended")
_VERDICTS = {"passed", "failed", "skipped", *_ODD}  # on a test, of rewards/verify/code.py


def summarise(rollouts: pa.Table, num_resamples: int, seed: int) -> dict[str, float | int]:
    """Accuracy with a 95% bootstrap interval over problems, and the sampler's figures, of rows of
    the rollout schema.

    accuracy: mean over problems of the share of their responses that are correct; the interval
    resamples problems. tokens_per_step counts denoising forwards only (the paper's count);
    tokens_per_forward counts prefill and cache commits as well. Tokens after the end token are not
    counted. empty_rate: the share of responses whose first token is an end token.
    undecided responses are counted apart and are not correct. pass_at_k is there where
    every problem has k responses, `program_timeout` and the like where programs were judged: the
    share of responses of which a test ended in that way. They show a model that attacks its judge.
    """
    column = {
        name: rollouts[name].to_numpy()
        for name in ("task_id", "verdict", "num_tokens", "stop_reason")
    }
    forwards = {
        name: int(rollouts[name].to_numpy().sum())
        for name in ("num_denoising_forwards", "num_forwards")
    }
    _, problem, counts = np.unique(column["task_id"], return_inverse=True, return_counts=True)
    scores = np.bincount(problem, weights=column["verdict"] == "correct") / counts
    low, high = bootstrap_interval(scores, num_resamples, seed)
    tokens = int(column["num_tokens"].sum())
    is_empty = (column["stop_reason"] == "end") & (column["num_tokens"] == 1)
    correct = np.bincount(problem, weights=column["verdict"] == "correct").astype(np.int64)
    return {
        "num_problems": len(scores),
        "num_responses": len(problem),
        "accuracy": float(scores.mean()),
        "ci_low": low,
        "ci_high": high,
        "undecided": int((column["verdict"] == "undecided").sum()),
        "tokens_per_step": tokens / max(forwards["num_denoising_forwards"], 1),
        "tokens_per_forward": tokens / max(forwards["num_forwards"], 1),
        "mean_length": tokens / len(problem),
        "truncation_rate": float((column["stop_reason"] == "length").mean()),
        "empty_rate": float(is_empty.mean()),
        **{
            f"pass_at_{k}": float(pass_at_k(counts, correct, k).mean())
            for k in _powers_of_two(int(counts.min()))
        },
        **_program_ends(rollouts["detail"].to_pylist()),
    }


def _program_ends(details: list[str]) -> dict[str, float]:
    """Of responses whose detail is "sandbox: verdict verdict ...", the share that holds each
    verdict which no honest program gets often."""
    said = [set(detail.partition(": ")[2].split()) for detail in details]
    judged = [words for words in said if words and words <= _VERDICTS]
    return {
        f"program_{end}": sum(end in words for words in judged) / len(judged)
        for end in _ODD
        if judged
    }


def pass_at_k(
    num_samples: npt.NDArray[np.int64], num_correct: npt.NDArray[np.int64], k: int
) -> npt.NDArray[np.float64]:
    """The unbiased estimate of the chance that one of k responses is correct, per problem: 1 - C(n
    - c, k) / C(n, k) (Chen et al. 2021)."""
    wrong = num_samples - num_correct
    missed = np.ones(len(num_samples))
    # The product of (n - c - i) / (n - i), which is 0 as soon as fewer than k are wrong.
    for i in range(k):
        missed *= np.maximum(wrong - i, 0) / (num_samples - i)
    return 1.0 - missed


def _powers_of_two(most: int) -> list[int]:
    """2, 4, 8, ... up to `most`; pass@1 is the accuracy."""
    return [2**i for i in range(1, most.bit_length()) if 2**i <= most]


def bootstrap_interval(
    scores: npt.NDArray[np.float64], num_resamples: int, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap interval (95%) of the mean of per-problem scores."""
    rng = generator_for(seed, "bootstrap", len(scores))
    means = [scores[rng.integers(0, len(scores), len(scores))].mean() for _ in range(num_resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
