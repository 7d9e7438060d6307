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
    verdicts = rollouts["verdict"].to_numpy()
    num_tokens = rollouts["num_tokens"].to_numpy()
    stop_reasons = rollouts["stop_reason"].to_numpy()
    num_denoising_forwards = int(rollouts["num_denoising_forwards"].to_numpy().sum())
    num_forwards = int(rollouts["num_forwards"].to_numpy().sum())
    _, problem, counts = np.unique(
        rollouts["task_id"].to_numpy(), return_inverse=True, return_counts=True
    )
    scores = np.bincount(problem, weights=verdicts == "correct") / counts
    low, high = bootstrap_interval(scores, num_resamples, seed)
    tokens = int(num_tokens.sum())
    is_empty = (stop_reasons == "end") & (num_tokens == 1)
    correct = np.bincount(problem, weights=verdicts == "correct").astype(np.int64)
    at_k = {}
    for k in _powers_of_two(int(counts.min())):
        at_k[f"pass_at_{k}"] = float(pass_at_k(counts, correct, k).mean())
    return {
        "num_problems": len(scores),
        "num_responses": len(problem),
        "accuracy": float(scores.mean()),
        "ci_low": low,
        "ci_high": high,
        "undecided": int((verdicts == "undecided").sum()),
        "tokens_per_step": tokens / max(num_denoising_forwards, 1),
        "tokens_per_forward": tokens / max(num_forwards, 1),
        "mean_length": tokens / len(problem),
        "truncation_rate": float((stop_reasons == "length").mean()),
        "empty_rate": float(is_empty.mean()),
        **at_k,
        **_program_ends(rollouts["detail"].to_pylist()),
    }


def _program_ends(details: list[str]) -> dict[str, float]:
    """Of responses whose detail is "sandbox: verdict verdict ...", the share that holds each
    verdict which no honest program gets often."""
    num_judged = 0
    num_with = dict.fromkeys(_ODD, 0)
    for detail in details:
        verdicts = set(detail.partition(": ")[2].split())
        if verdicts and verdicts <= _VERDICTS:
            num_judged += 1
            for end in _ODD:
                num_with[end] += end in verdicts
    if not num_judged:
        return {}
    return {f"program_{end}": count / num_judged for end, count in num_with.items()}


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
