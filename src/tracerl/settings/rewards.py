"""Section `verification` and the rewards of a round; rewards/ and docs/judges.md."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tracerl.settings.base import Fraction, Name, Positive, Section

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
    """Process rewards: a judge scores the chunks of a response; docs/judges.md.

    A chunk ends with the token that completes one of `separators`, or holds `chunk_tokens` tokens.
    """

    judge: Name
    """Name of a judge of `verification.judges`."""
    weight: float = Field(gt=0.0)
    """Weight of the scores, standardised in the group, beside the outcome."""
    separators: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = (
        None
    )
    """Texts that end a chunk; left out with chunk_tokens."""
    chunk_tokens: int | None = Field(default=None, gt=0)
    """Tokens of a chunk; left out with separators."""
    max_chunks: int = Positive
    """Chunks of a response; the last one holds all the rest."""

    @model_validator(mode="after")
    def _chunks_end_one_way(self) -> Self:
        if (self.separators is None) == (self.chunk_tokens is None):
            raise ValueError("chunks need separators or chunk_tokens, and not both")
        return self


class _Judge(Section):
    """Who scores responses or their chunks."""

    needs_step_rules: ClassVar[bool] = False
    """Whether it scores only chunks of task sets that have rules for steps."""

    @property
    def checkpoint_path(self) -> str | None:
        """Directory of a checkpoint that it loads, None if it loads none."""
        return None

    @property
    def key_variable(self) -> str | None:
        """Environment variable of a key that it needs, None if it needs none."""
        return None


class StepsJudge(_Judge):
    """Checks the written steps of generated problems."""

    needs_step_rules = True

    kind: Literal["steps"]
    """Kind of the judge."""


class ModelJudge(_Judge):
    """Asks a local autoregressive checkpoint for yes or no."""

    kind: Literal["model"]
    """Kind of the judge."""
    path: str = Field(min_length=1)
    """Directory of the checkpoint, below the project's root."""
    instructions: str
    """Text before every question, "" for none."""
    max_rows: int = Positive
    """Questions at once."""
    max_prompt_tokens: int = Positive
    """Longer questions are undecided."""
    min_mass: float = Fraction
    """Questions are undecided where yes and no together have less probability."""

    @property
    def checkpoint_path(self) -> str | None:
        return self.path


class ServerJudge(_Judge):
    """Asks a server that speaks OpenAI's chat completions."""

    kind: Literal["server"]
    """Kind of the judge."""
    url: str = Field(pattern=r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$")
    """Address up to and without /chat/completions."""
    model: str = Field(min_length=1)
    """The model's name there."""
    api_key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None
    """Environment variable that holds the key, null for none; the key itself is never stored."""
    instructions: str
    """Text before every question, "" for none."""
    temperature: Annotated[float, Field(ge=0.0)] | None
    """Sampling temperature; null leaves it to the server."""
    max_answer_tokens: int = Positive
    """Limit of an answer, in tokens."""
    timeout_seconds: float = Field(gt=0.0)
    """Limit of connecting, of each wait and of the body of a try, in seconds."""
    retries: int = Field(ge=0)
    """Further tries after the first one."""
    backoff_seconds: float = Field(ge=0.0)
    """Pause before the first retry, in seconds; it doubles with every further one."""
    concurrency: int = Positive
    """Questions at once, on each rank."""

    @property
    def key_variable(self) -> str | None:
        return self.api_key_variable


Judge = Annotated[StepsJudge | ModelJudge | ServerJudge, Field(discriminator="kind")]


class Verification(Section):
    """How responses are judged. None of it touches sums, arithmetic and text."""

    judge: Name | None
    """The judge that decides tasks without a verifiable answer and the reward part "judge"; null
    for none."""
    judges: dict[Name, Judge]
    """Judges by name; a round's `process` names the one that scores its steps."""
    num_workers: int = Positive
    """Judging processes at once; no verdict depends on it."""
    math_cpu_seconds: float = Field(gt=0.0)
    """CPU time to compare two answers, in seconds."""
    sandbox: Literal["bubblewrap", "unconfined"]
    """Where model programs run; unconfined isolates nothing and must be chosen by name."""
    code_cpu_seconds: float = Field(gt=0.0)
    """CPU time of a process of a program, in seconds."""
    code_idle_seconds: float = Field(gt=0.0)
    """Wall time of a test without CPU use, in seconds."""
    memory_mib: int = Positive
    """Memory of a process of a program, in MiB."""
    processes: int = Positive
    """Processes of a program."""
    file_kib: int = Positive
    """Size of a file that a program writes, in KiB."""
    open_files: int = Field(ge=16)
    """Open files of a program."""
    output_kib: int = Positive
    """Output of a test, in KiB."""
