"""Section `verification` and the rewards of a round."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Name, Positive, Section

RewardPart = Literal[
    "correct",
    "boxed_format",
    "xml_count",
    "soft_format",
    "strict_format",
    "integer_answer",
    "right_numbers",
    "filled_blanks",
    "brevity",
    "judge",
]


class Process(Section):
    """Process rewards: judge `judge` of `verification.judges` scores the chunks of a response; see
    training/process_rewards.py and docs/judges.md.

    weight: of the scores, once standardised in the group, beside the outcome. A chunk ends with the
    token that completes one of `separators`, or holds `chunk_tokens` tokens; the last of
    `max_chunks` holds all the rest.
    """

    judge: Name
    weight: float = Field(gt=0.0)
    separators: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = (
        None
    )
    chunk_tokens: int | None = Field(default=None, gt=0)
    max_chunks: int = Positive

    @model_validator(mode="after")
    def _chunks_end_one_way(self) -> Self:
        if (self.separators is None) == (self.chunk_tokens is None):
            raise ValueError("chunks need separators or chunk_tokens, and not both")
        return self


# Keys of a judge that belong to its kind. Every kind needs all of its own.
JUDGE_KEYS: dict[str, tuple[str, ...]] = {
    "steps": (),
    "model": ("path", "max_rows", "max_prompt_tokens", "min_mass", "instructions"),
    "server": (
        "url",
        "model",
        "api_key_variable",
        "temperature",
        "max_answer_tokens",
        "timeout_seconds",
        "retries",
        "backoff_seconds",
        "concurrency",
        "instructions",
    ),
}


_NULLABLE_JUDGE_KEYS = ("api_key_variable", "temperature")


class Judge(Section):
    """Who scores responses or their chunks; see rewards/judges/kinds.py and docs/judges.md. Keys of other
    kinds are left out.

    kind: "steps" checks the written steps of generated arithmetic, "model" asks a local
    autoregressive checkpoint for yes or no, "server" a server that speaks OpenAI's chat
    completions.
    instructions: put before every question, "" for none. path: directory of the checkpoint.
    max_rows: questions at once. max_prompt_tokens: longer questions are undecided. min_mass: so are
    those where yes and no together have less probability.
    url: up to and without /chat/completions. model: its name there. api_key_variable: the
    environment variable that holds the key, null for none; the key itself is never stored.
    temperature: null leaves it to the server. max_answer_tokens: limit of an answer.
    timeout_seconds: of connecting, of each wait and of the body of a try. retries: further tries,
    the n-th after backoff_seconds x 2^(n-1).
    concurrency: questions at once, on each rank.
    """

    kind: Literal["steps", "model", "server"]
    instructions: str | None = None
    path: str | None = None
    max_rows: int | None = Field(default=None, gt=0)
    max_prompt_tokens: int | None = Field(default=None, gt=0)
    min_mass: float | None = Field(default=None, ge=0.0, le=1.0)
    url: str | None = Field(default=None, pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")
    model: str | None = Field(default=None, min_length=1)
    api_key_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    temperature: float | None = Field(default=None, ge=0.0)
    max_answer_tokens: int | None = Field(default=None, gt=0)
    timeout_seconds: float | None = Field(default=None, gt=0.0)
    retries: int | None = Field(default=None, ge=0)
    backoff_seconds: float | None = Field(default=None, ge=0.0)
    concurrency: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _kind_has_its_keys_and_no_others(self) -> Self:
        needed, said = JUDGE_KEYS[self.kind], self.model_fields_set - {"kind"}
        missing = [
            k
            for k in needed
            if k not in said or (getattr(self, k) is None and k not in _NULLABLE_JUDGE_KEYS)
        ]
        if missing:
            raise ValueError(f"a judge of kind {self.kind!r} needs {', '.join(missing)}")
        if idle := sorted(key for key in said - set(needed) if getattr(self, key) is not None):
            raise ValueError(
                f"{', '.join(idle)} say nothing to a judge of kind {self.kind!r}: leave them out"
            )
        return self


class Verification(Section):
    """How responses are judged; see rewards/. None of it touches sums, arithmetic and text.

    judges: by name, for those who use them: `judge` (null for none) decides tasks without a
    verifiable answer and the reward part "judge", and a round's `process` names the one that scores
    steps.

    num_workers: judging processes at once; no verdict depends on it. math_cpu_seconds: CPU time to
    compare two answers.
    sandbox: where model programs run; "unconfined" isolates nothing and must be chosen by name. The
    rest are a program's limits: CPU time a process, idle time a test, memory a process, processes,
    file size, open files, output a test.
    """

    judge: Name | None = None
    judges: dict[Name, Judge] | None = None
    num_workers: int = Positive
    math_cpu_seconds: float = Field(gt=0.0)
    sandbox: Literal["bubblewrap", "unconfined"]
    code_cpu_seconds: float = Field(gt=0.0)
    code_idle_seconds: float = Field(gt=0.0)
    memory_mib: int = Positive
    processes: int = Positive
    file_kib: int = Positive
    open_files: int = Field(ge=16)
    output_kib: int = Positive
