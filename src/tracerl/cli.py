"""The command line. Heavy modules are imported inside the commands: --help answers at once."""

import os
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracerl.errors import DataError, TracerlError, printable
from tracerl.reporting.terminal import Format, console, format_of, new_table, readable, write_result

if TYPE_CHECKING:
    import pyarrow as pa

    from tracerl.models.policy import Policy
    from tracerl.models.tokenizer import Tokenizer
    from tracerl.reporting.summary import Row, SeedColumn
    from tracerl.rewards.judges.questions import Judge
    from tracerl.settings.params import Params
    from tracerl.settings.sampling import Sampler

app = typer.Typer(
    help="Ask a run for its results and trajectories, and a model for responses.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

data = typer.Typer(
    help="Import published sets; check and accept what a run stored.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data, name="data")

Root = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Folder of the run: the one that holds data/ and reports/."),
]

Responses = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read this file of `tracerl generate` instead of a run: its rows are `rollouts`.",
    ),
]


class Dtype(StrEnum):
    """Precision of exported weights; `stored` leaves it."""

    stored = "stored"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Where(StrEnum):
    """Where `generate` and `chat` run a model."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. An error of ours, or of the operating system, ends it with its message and exit
    status 1, not with a traceback."""
    _open_streams()
    words = map(_keep_comment, sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            app(args=list(words), prog_name="tracerl")
        finally:
            sys.stdout.flush()  # what a full disk refuses, it refuses here
    except TracerlError as error:
        sys.exit(f"error: {error}")
    except RecursionError:
        sys.exit("error: the input is nested too deeply")
    except OSError as error:
        _give_up_output()
        message = printable(f"{error.filename or 'the output'}: {error.strerror or error}")
        sys.exit(f"error: a file cannot be read or written\n  where: {message}")


def _keep_comment(word: str) -> str:
    """A word of the command line; SQL that begins with a comment is no option."""
    return f"\n{word}" if re.match(r"--[^\s=]*\s", word) else word


def _open_streams() -> None:
    """Makes both output streams take any text, also on a terminal that is not UTF-8. A stream that
    the caller closed takes what is written to it and drops it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _give_up_output() -> None:
    """Keeps the interpreter from writing again, when it ends, to an output that is full or gone."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str, error: bool = False) -> None:
    """Prints a line, with nothing in it that a terminal would act on."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


@app.command()
def sql(
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY]", help="One SELECT statement of DuckDB; none starts a shell."
        ),
    ] = None,
    root: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Folder of the run, or an address such as s3://bucket/run."
        ),
    ] = ".",
    format: Annotated[
        Format | None, typer.Option(help="By default that of FILE's name, or a table.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there instead of to the terminal.")
    ] = None,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged", help="Leave damaged files out, and say which. Includes --verify."
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare the SHA-256 of every file with its manifest first."),
    ] = False,
    responses: Responses = None,
) -> None:
    """Query everything the run wrote: tasks, traces, rollouts, evals, checkpoints, metrics and
    runs. Rows of stages that have not ended are marked unfinished.

    \b
    Examples:
      tracerl sql                                            a shell with history and completion
      tracerl sql "describe rollouts"
      tracerl sql "from rollouts limit 1" --format record
      tracerl sql "select stage, iteration, pass_rate(verdict) from rollouts group by all"
      tracerl sql "select prompt, text from evals join tasks using (task_id) limit 20"
      tracerl sql "from rollouts where stage = 'rl@short' and iteration = 40" --out last.parquet
    docs/sql.md answers ten questions.
    """
    from tracerl.store.catalog import connect, connect_file, find_damaged_files

    chosen = format or format_of(out)
    if chosen is Format.parquet and out is None:
        raise DataError("Parquet is not for terminals", do="name a file with --out")
    if responses is not None:
        connection = connect_file(responses)
    else:
        if skip_damaged:
            for problem in find_damaged_files(root, verify=True):
                _say(f"left out: {problem}", error=True)
        connection = connect(
            root,
            skip_damaged=skip_damaged,
            verify=verify or skip_damaged,  # a damaged page shows in no footer
            unfinished=True,
        )
    if query is None:
        _shell(connection, chosen)
        return
    write_result(_answer(connection, query), chosen, out)


def _shell(connection: Any, chosen: Format) -> None:
    from tracerl.store.shell import run_shell

    def run(query: str) -> None:
        try:
            write_result(_answer(connection, query), chosen, None)
        except TracerlError as error:
            _say(f"error: {error}")

    run_shell(connection, run, _say, Path(typer.get_app_dir("tracerl")) / "sql_history")


def _answer(connection: Any, query: str) -> "pa.Table":
    """A query's result; one that takes longer than a second shows its progress on the error stream,
    and Ctrl-C stops it."""
    from concurrent.futures import ThreadPoolExecutor, wait

    from tracerl.store.catalog import answer

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(answer, connection, query)
        try:
            if wait([future], timeout=1.0).not_done and sys.stderr.isatty():
                _show_progress(connection, future)
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise DataError("the query was stopped", got=query) from None


def _show_progress(connection: Any, future: Any) -> None:
    from concurrent.futures import wait

    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("query"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task("query", total=None)
        while wait([future], timeout=0.2).not_done:
            percent = float(connection.query_progress())
            progress.update(task, total=100.0 if percent > 0 else None, completed=max(percent, 0.0))


@data.command()
def check(root: Root = Path(".")) -> None:
    """Check every stored file: checksums, row counts, ids, laws of trajectories, duplicates. Exit
    status 1 if something is wrong.

    \b
    Examples:
      tracerl data check
      tracerl data check --root ../other-run
    """
    from tracerl.store.check import check_run

    count = 0
    for finding in check_run(root):
        count += 1
        _say(str(finding))
    if count:
        raise DataError(
            "the data are not sound",
            where=str(root / "data"),
            got=f"{count} findings, listed above",
            do="run the stages that wrote these files again",
        )
    _say("Everything is sound.")


@data.command()
def accept(root: Root = Path(".")) -> None:
    """Make this run the one that later runs are compared with: its figures become
    reports/baseline.json.

    \b
    Examples:
      tracerl data accept && git add reports/baseline.json
    """
    from tracerl.disk import write_json
    from tracerl.store.expectations import accepted_metrics

    write_json(
        root / "reports" / "baseline.json", accepted_metrics(root / "reports" / "validation")
    )
    _say(f"Accepted: {root / 'reports' / 'baseline.json'}")


@app.command()
def watch(
    root: Root = Path("."),
    every: Annotated[
        int, typer.Option(metavar="SECONDS", min=1, help="How often the curves are read.")
    ] = 5,
    once: Annotated[bool, typer.Option("--once", help="Write the page once and end.")] = False,
) -> None:
    """Draw the curves of the stages that are running, in a page that reloads itself, until Ctrl-C.

    \b
    Examples:
      tracerl watch
      tracerl watch --every 30
    """
    import time

    from tracerl.disk import write_text
    from tracerl.reporting.live import render_live
    from tracerl.store.run_files import RunFiles

    RunFiles(root)  # an error where no run is
    page = root / "data" / "scratch" / "watch.html"
    _say(f"Open {page} in a browser; Ctrl-C ends.")
    while True:
        write_text(page, render_live(root / "data" / "scratch", every))
        if once:
            return
        try:
            time.sleep(every)
        except KeyboardInterrupt:
            return


@app.command()
def trace(
    condition: Annotated[
        str,
        typer.Argument(
            metavar="CONDITION",
            help="SQL condition on a response of the views rollouts, evals and traces.",
        ),
    ],
    root: Root = Path("."),
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path(
        "trace.html"
    ),
    against: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="Show these responses to the same problems beside them."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many responses.")] = 200,
    responses: Responses = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint whose tokenizer decodes; the run's base."),
    ] = None,
) -> None:
    """Write one HTML page that plays responses as they were unmasked, step by step. It needs no
    network.

    \b
    Examples:
      tracerl trace "stage = 'rl@short' and iteration = 40 and verdict = 'wrong'" tracerl trace
      "stage like 'evaluate@rl-short/dynamic'" --against "stage like 'evaluate@sft-short/dynamic'"
      --out compare.html
    """
    from tracerl.disk import write_text
    from tracerl.models.tokenizer import load_tokenizer
    from tracerl.reporting.trace_viewer import render_viewer, select_responses
    from tracerl.store.catalog import connect, connect_file

    connection = connect(root, unfinished=True) if responses is None else connect_file(responses)
    rows = select_responses(connection, condition, against, limit)
    title = condition if against is None else f"before: {against}; after: {condition}"
    tokenizer = load_tokenizer(model or root / "data" / "checkpoints" / "base", None)
    write_text(out, render_viewer(rows, tokenizer, title))
    _say(f"{len(rows)} responses: {out}")


@app.command()
def summary(
    root: Root = Path("."),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table alone, as it stands in the README.")
    ] = False,
) -> None:
    """Print the result table, where the report is, and whether the run equals the committed one.

    The table has the range over several seeds where reports/seeds.json holds one for this run
    (`python -m flows.seeds 2 3` makes it).

    \b
    Examples:
      tracerl summary
      tracerl summary --markdown
    """
    from tracerl.reporting.committed import compare_with_commit, describe
    from tracerl.reporting.summary import NUM_NAMES, markdown_table, read_summary, table_lines

    reports = root / "reports"
    rows = read_summary(reports / "metrics" / "summary.json")
    seeds = _seed_column(root, rows)
    if markdown:
        _say(markdown_table(rows, seeds))
        return
    headings, *lines = table_lines(rows, seeds)
    table = new_table(headings, [index >= NUM_NAMES for index in range(len(headings))])
    for line in lines:
        table.add_row(*line)
    console().print(table)
    _say(f"Report: {reports / 'report.html'}")
    _say(describe(compare_with_commit(root)))


def _seed_column(root: Path, rows: "Sequence[Row]") -> "SeedColumn | None":
    """The range over seeds beside the result table; None, and why on the error stream, if there is
    none of this run."""
    from tracerl.reporting.seeds import read_seeds, seed_column

    results = read_seeds(root / "reports" / "seeds.json")
    if results is None:
        return None
    try:
        return seed_column(results, (root / "params.yaml").read_text("utf-8"), rows)
    except DataError as error:
        _say(f"note: no range over seeds: {error}", error=True)
        return None


@app.command()
def export(
    model: Annotated[Path, typer.Option(metavar="DIR", help="A checkpoint, or adapters of one.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new directory.")],
    merge_lora: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="PEFT adapters to merge; may be repeated."),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of the exported weights.")] = Dtype.stored,
) -> None:
    """Write a checkpoint under its published names, sharded, with adapters merged into the weights.

    \b
    Examples:
      tracerl export --model data/checkpoints/rl@long --out exported --dtype bfloat16 tracerl export
      --model data/checkpoints/base --merge-lora data/checkpoints/sft@short --out merged
    """
    from tracerl.models.export import export_checkpoint
    from tracerl.settings.models import Compute

    compute = Compute(
        device="cpu", dtype=dtype.value, attention="auto", checkpoint_layers=False, vectors="avx2"
    )
    _say(f"{out}: weights {export_checkpoint(model, out, merge_lora or [], compute)}")


@app.command()
def params() -> None:
    """Print what every key of a params file means, as Markdown.

    \b
    Examples:
      tracerl params
      tracerl params > docs/params.md
    """
    from tracerl.settings.reference import params_reference

    _say(params_reference().removesuffix("\n"))


@app.command()
def doctor(
    params: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check it and estimate the memory of its stages."),
    ] = None,
    root: Root = Path("."),
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Published config.json with the shape, if base.path is not there yet.",
        ),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Run one task through every stage, with random weights, and measure."
        ),
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Layers of a rehearsal; without it 1 on a CPU, and all on a GPU."),
    ] = None,
    width_divisor: Annotated[
        int,
        typer.Option(min=1, help="Divide vocabulary, widths and heads of a rehearsal by this."),
    ] = 1,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Length of a rehearsed prompt, tokens.")
    ] = 64,
    response_tokens: Annotated[
        int, typer.Option(min=1, help="Limit of a rehearsed response, tokens.")
    ] = 64,
) -> None:
    """Show devices, memory, attention back ends and versions; for a params file, its judges and
    what each stage needs.

    Forwards and TFLOP are upper bounds, everything being as large as its limits allow; "measured"
    is what the last run of a stage took (its memory is the whole process's). Exits with status 1 if
    a stage needs more memory than there is, or will be refused.

    With --rehearse, the stages run instead, each on one task, on a model of the checkpoint's shape
    with random weights and with a tokenizer made on the spot; exits with status 1 if a stage is
    refused.

    \b
    Examples:
      tracerl doctor
      tracerl doctor --params params.yaml
      tracerl doctor --params profiles/sdar-4b.yaml --rehearse
      tracerl doctor --params profiles/sdar-4b.yaml --rehearse --width-divisor 8 \\
        --config profiles/configs/SDAR-4B-Chat.json
    """
    from tracerl.reporting.doctor import judges, machine
    from tracerl.settings.params import load_params

    if rehearse and params is not None:
        sizes = (layers, width_divisor, prompt_tokens, response_tokens)
        _rehearse(load_params(params), root, config, sizes)
        return
    table = new_table(["what", "here"], [False, False])
    for row in machine():
        table.add_row(*row)
    console().print(table)
    if params is None:
        return
    run = load_params(params)
    if run.verification.judges:
        table = new_table(["judge", "kind", "state"], [False, False, False])
        for state in judges(run, root, os.environ):
            table.add_row(*state)
        console().print(table)
    _show_needs(run, root, config)


def _show_needs(params: "Params", root: Path, config: Path | None) -> None:
    """What each stage needs, beside what its last run took."""
    from tracerl.models.checkpoint import device_of
    from tracerl.reporting.doctor import (
        expert_memory,
        measured,
        memory_limit,
        needs,
        readable,
        refusals,
    )

    device = device_of(params.compute)
    limit = memory_limit(params.compute)
    stages = needs(params, root, config)
    runs = measured(root)
    memory = new_table(
        ["memory", "weights", "optimizer", "passes", "total", "measured"], [False] + [True] * 5
    )
    work = new_table(["work", "forwards", "measured", "TFLOP", "measured"], [False] + [True] * 4)
    for need in stages:
        peak = forwards = flops = ""
        if need.stage in runs:
            run = runs[need.stage]
            peak = readable(run["peak_bytes"])
            forwards = f"{run['forwards']:,}"
            flops = f"{run['flops'] / 1e12:,.2f}"
        sizes = (need.weights, need.state, need.passes, need.total)
        memory.add_row(need.stage, *map(readable, sizes), peak)
        work.add_row(need.stage, f"{need.forwards:,}", forwards, f"{need.flops / 1e12:,.2f}", flops)
    console().print(memory, work)
    if experts := expert_memory(params, root, config):
        _say(experts)
    short = [need.stage for need in stages if need.total > limit]
    _say(
        f"{device} has {readable(limit)}: "
        + (f"too little for {', '.join(short)}" if short else "enough for every stage.")
    )
    errors = refusals(params, root, config)
    for stage, error in errors.items():
        _say(f"{stage} will be refused: {error}")
    if short or errors:
        raise typer.Exit(1)


def _rehearse(
    params: "Params", root: Path, config: Path | None, sizes: tuple[int | None, int, int, int]
) -> None:
    """Rehearses and shows what was found. sizes: layers, divisor of widths, tokens of prompts and
    of responses."""
    import tempfile

    from tracerl.reporting.doctor import readable
    from tracerl.reporting.rehearsal import plan_rehearsal, rehearse
    from tracerl.reporting.rehearsal_inputs import Reductions, usual_layers

    layers, width_divisor, prompt_tokens, response_tokens = sizes
    reductions = Reductions(
        num_layers=layers or usual_layers(),
        width_divisor=width_divisor,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
    )
    rehearsal = plan_rehearsal(params, root, config, reductions)
    _say(f"rehearsed: {rehearsal.describe()}")
    with tempfile.TemporaryDirectory(prefix="tracerl-rehearsal-") as folder:
        stages = rehearse(rehearsal, Path(folder), lambda stage: _say(f"{stage} ...", error=True))
    headings = ["stage", "time", "peak", "expected", "all layers: time", "peak", "whole run"]
    table = new_table(headings, [False] + [True] * 6)
    for stage in stages:
        cells = ["refused", "", readable(stage.expected_bytes), "", ""]
        if not stage.refusal:
            cells = [
                f"{stage.seconds:.2f} s",
                readable(stage.peak_bytes),
                readable(stage.expected_bytes),
                f"{stage.full_seconds:.2f} s",
                readable(stage.full_bytes),
            ]
        table.add_row(stage.stage, *cells, readable(stage.run_bytes))
    console().print(table)
    _say(
        "peak: measured, beyond what the process held before; expected: what doctor counts for\n"
        "what was rehearsed; all layers: scaled to them, all else as rehearsed; whole run: what\n"
        "doctor counts for the params as they are"
    )
    refused = [stage for stage in stages if stage.refusal]
    for stage in refused:
        _say(f"{stage.stage} is refused: {stage.refusal}")
    if refused:
        raise typer.Exit(1)
    _say("no stage is refused")


ModelDir = Annotated[
    Path,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Checkpoint directory: config.json, safetensors, tokenizer.json.",
    ),
]
ParamsFile = Annotated[
    Path | None,
    typer.Option(
        "--params", metavar="FILE", help="Take the sampler's settings from this params file."
    ),
]
Place = Annotated[
    str,
    typer.Option(
        "--sampler",
        metavar="PLACE",
        help="Which of its samplers: traces, rl.NAME or evaluate.NAME.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one sampler setting; may be given again."
    ),
]
Device = Annotated[Where, typer.Option(help="auto is the GPU if there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; equal seeds give equal responses.")]


@app.command()
def generate(  # noqa: PLR0913 (an argument for each option)
    model: ModelDir,
    prompts: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help=(
                "A .txt file (one prompt a line), or .jsonl or .parquet with prompt or prompt_ids."
            ),
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File to write, by its name Parquet or JSONL.")
    ],
    params: ParamsFile = None,
    sampler: Place = "traces",
    set_: Changes = None,
    num_samples: Annotated[int, typer.Option(min=1, help="Responses to each prompt.")] = 1,
    seed: Seed = 0,
    template: Annotated[
        bool, typer.Option(help="Put text prompts into the checkpoint's chat form.")
    ] = True,
    save_every: Annotated[
        int,
        typer.Option(
            min=1, help="Responses a saved part holds; a killed run continues after the last."
        ),
    ] = 1024,
    device: Device = Where.auto,
) -> None:
    """Sample responses to a file of prompts; run again, a killed one continues.

    \b
    Examples:
      tracerl generate --model data/checkpoints/rl@long --prompts sums.txt --out sums.parquet
      tracerl generate --model SDAR-4B-Chat --prompts p.jsonl --out r.parquet --set temperature=1.0
      --num-samples 8 tracerl generate --model LLaDA-8B-Instruct --prompts p.txt --out r.parquet
      --set cache=dual --set order.threshold=0.8 tracerl generate --model data/checkpoints/rl@wide
      --prompts p.txt --out r.parquet --params params.yaml --sampler evaluate.wide-k8
    """
    from tqdm import tqdm

    from tracerl.evaluation import generate as library
    from tracerl.models.checkpoint import policy_hash

    policy, tokenizer = _load(model, device)
    settings = _settings(policy, params, sampler, set_)
    rows = library.read_prompts(prompts, tokenizer, settings, template)
    _say(_settings_line(settings), error=True)
    run = library.GenerateRun(
        prompts=rows,
        settings=settings,
        num_samples=num_samples,
        seed=seed,
        policy_hash=policy_hash(policy),
        out=out,
        part_size=save_every,
    )
    with tqdm(total=len(rows) * num_samples, unit=" responses", dynamic_ncols=True) as bar:
        table = library.generate(policy, tokenizer, run, lambda n: bar.update(n) and None)
    _say(f"{out}: {_response_counts(table)}")


def _response_counts(table: "pa.Table") -> str:
    """What `generate` says of its responses."""
    num_ended = table["stop_reason"].to_pylist().count("end")
    num_tokens = sum(table["num_tokens"].to_pylist())
    length = num_tokens / table.num_rows
    per_forward = num_tokens / sum(table["num_forwards"].to_pylist())
    counts = f"{table.num_rows} responses, {num_ended} ended"
    return f"{counts}, {length:.1f} tokens each, {per_forward:.2f} tokens per forward"


@app.command()
def chat(
    model: ModelDir,
    params: ParamsFile = None,
    sampler: Place = "traces",
    set_: Changes = None,
    seed: Seed = 0,
    device: Device = Where.auto,
) -> None:
    """Talk to a checkpoint and watch its tokens appear in the order in which they are unmasked.

    \b
    Examples:
      tracerl chat --model data/checkpoints/rl@long
      tracerl chat --model SDAR-4B-Chat --set temperature=1.0 --set order.threshold=0.8
    """
    from rich.console import Console

    from tracerl.reporting.chat import HELP, converse

    policy, tokenizer = _load(model, device)
    settings = _settings(policy, params, sampler, set_)
    terminal = Console(markup=False, emoji=False)
    terminal.print(_settings_line(settings), style="dim", highlight=False)
    terminal.print(HELP, style="dim", highlight=False)

    def read() -> str | None:
        try:
            return terminal.input("> ")
        except (EOFError, KeyboardInterrupt):
            return None

    converse(policy, tokenizer, settings, seed, terminal, read)


@app.command()
def judge(  # noqa: PLR0913 (an argument for each option)
    name: Annotated[str, typer.Argument(metavar="NAME", help="A judge of verification.judges.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="A problem.")],
    response: Annotated[str, typer.Option(metavar="TEXT", help="What was written to solve it.")],
    params: Annotated[
        Path, typer.Option(metavar="FILE", help="The params file that names the judge.")
    ] = Path("params.yaml"),
    separator: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="What ends a step; none asks for the whole response."),
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="Kind of the task, for a judge of steps.")
    ] = "open",
    answer: Annotated[
        str, typer.Option(metavar="TEXT", help="A reference answer, if there is one.")
    ] = "",
    rubric: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="What a response must do, if there is more to say than the problem does.",
        ),
    ] = "",
    root: Root = Path("."),
) -> None:
    """Ask a judge what it thinks of a response, or of each of its steps: a trial before a run
    depends on it.

    \b
    Examples:
      tracerl judge steps --kind sums --prompt 4+7+5= --response "11;17;#17" --separator ";" tracerl
      judge qwen --prompt "Write a haiku." --rubric "Five, seven and five syllables." --response "An
      old silent pond..."
    """
    from tracerl.rewards.judges.kinds import trial

    ask = _make_judge(name, params, root)
    rows = trial(ask, kind, prompt, response, separator or [], answer, rubric)
    heading = "step" if separator else "response"
    table = new_table([heading, "score", "undecided because"], [False, True, False])
    for text, opinion in rows:
        score = "" if opinion.score is None else f"{opinion.score:+.2f}"
        table.add_row(readable(text.strip()), score, readable(opinion.reason))
    console().print(table)


def _make_judge(name: str, params: Path, root: Path) -> "Judge":
    """A judge of a params file, with its key from the environment."""
    from tracerl.rewards.judges.kinds import make_judge
    from tracerl.settings.params import load_params

    run = load_params(params)
    judges = run.verification.judges
    if name not in judges:
        raise DataError(
            "no judge of this name",
            where=f"{params}: verification.judges",
            got=name,
            wanted=", ".join(judges) or "none there",
        )
    variable = judges[name].key_variable
    key = None if variable is None else os.environ.get(variable)
    return make_judge(name, judges[name], root, run.compute, key)


@app.command()
def compare(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="An evaluation: its name below evaluate in params.yaml."),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one, of the same problems.")],
    root: Root = Path("."),
    resamples: Annotated[int, typer.Option(min=1, help="Of the paired bootstrap.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the paired bootstrap.")] = 1,
) -> None:
    """Compare two evaluations problem by problem: difference with its interval, problems won and
    lost by B.

    \b
    Examples:
      tracerl compare sft-short rl-short
      tracerl compare rl-long-k8 wide-k8 --resamples 10000
    """
    from tracerl.evaluation.comparison import compare_evaluations

    rows = compare_evaluations(
        root / "data" / "evals" / first, root / "data" / "evals" / second, resamples, seed
    )
    headings = (
        "benchmark",
        "remasking",
        "problems",
        first,
        second,
        "difference (95% interval)",
        "won",
        "lost",
        "tied",
    )
    table = new_table(headings, [index >= 2 for index in range(len(headings))])
    for row in rows:
        low, high = 100 * row["ci_low"], 100 * row["ci_high"]
        difference = f"{100 * row['difference']:+.1f}% [{low:+.1f}, {high:+.1f}]"
        table.add_row(
            str(row["benchmark"]),
            str(row["remasking"]),
            str(row["num_problems"]),
            f"{100 * row['first']:.1f}%",
            f"{100 * row['second']:.1f}%",
            difference,
            str(row["won"]),
            str(row["lost"]),
            str(row["tied"]),
        )
    console().print(table)
    if unpaired := sum(row["unpaired"] for row in rows):
        _say(f"{unpaired} problems are in one of the two only and are left out.")


@data.command("add")
def add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A published set; `tracerl data list` names them.")
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PATH",
            help=(
                "Its file or directory; `hub` fetches it, `package` takes it from an installed one."
            ),
        ),
    ],
    template: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The user's turn, not the set's own; {problem} is the text, \\\\n a new line.",
        ),
    ] = None,
    root: Root = Path("."),
) -> None:
    """Import a published file as tasks: validated, without what it shares with other sets, with
    hash and licence recorded.

    \b
    Examples:
      tracerl data add math500 --from ~/Downloads/math500.jsonl
      tracerl data add livecodebench-v2 --from lcb/
      tracerl data add gsm8k --from hub
      tracerl data add humaneval --from package
      tracerl data add svamp --from SVAMP.json
      tracerl data add gsm8k --from hub --template 'Question: {problem}\\nAnswer:'
    """
    from tracerl.evaluation.importing import add_data, import_lines

    if template is not None:
        template = template.replace("\\n", "\n")
    _say("\n".join(import_lines(add_data(name, source, root, template))))


@data.command("list")
def list_sets() -> None:
    """List the published sets that can be imported."""
    from tracerl.evaluation.datasets import DATASETS

    table = new_table(
        ("name", "split", "tasks", "licence", "source"), [False, False, True, False, False]
    )
    for item in DATASETS.values():
        table.add_row(item.name, item.split, str(item.rows or ""), item.licence, item.source)
    console().print(table)


def _load(directory: Path, device: Where) -> "tuple[Policy, Tokenizer]":
    """Model, in evaluation mode and as stored, and tokenizer of a checkpoint directory."""
    from tracerl.models.checkpoint import load_checkpoint
    from tracerl.settings.models import Compute

    return load_checkpoint(
        directory,
        Compute(
            device=device.value,
            dtype="stored",
            attention="auto",
            checkpoint_layers=False,
            vectors="avx2",
        ),
    )


def _settings(
    model: "Policy", params: Path | None, place: str, changes: Sequence[str] | None
) -> "Sampler":
    """The sampler's settings: of a params file or the defaults, with the changes of the command
    line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from tracerl.evaluation.generate import change_settings, default_settings, sampler_of
    from tracerl.settings.params import load_params

    settings = (
        sampler_of(load_params(params), place, str(params))
        if params
        else default_settings(model.family.attention)
    )
    pairs = {}
    for change in changes or []:
        key, equals, text = change.partition("=")
        try:
            pairs[key] = YAML(typ="safe", pure=True).load(text)
        except YAMLError as error:
            raise DataError(
                "a setting cannot be read", where=f"--set {change}", got=error
            ) from error
        if not equals:
            raise DataError(
                "a setting has no value",
                where=f"--set {change}",
                wanted="KEY=VALUE, such as --set temperature=1.0",
            )
    return change_settings(settings, pairs)


def _settings_line(settings: "Sampler") -> str:
    words = []
    for key, value in settings.model_dump().items():
        if value not in (None, ""):
            words.append(f"{key} {value}")
    return ", ".join(words)
