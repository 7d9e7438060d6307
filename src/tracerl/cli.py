"""The command line. Heavy modules are imported inside the commands, so that --help answers at once."""

import csv
import json
import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracerl.errors import DataError, TracerlError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    from tracerl.models.policy import Policy
    from tracerl.models.tokenizer import Tokenizer
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
_MAX_TABLE_ROWS = 100


class Format(StrEnum):
    """What `tracerl sql` writes. A table is for reading and stops at 100 rows; the others are
    complete."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


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
    """Entry point. An error of ours ends it with its message and exit status 1, not with a
    traceback."""
    try:
        app(args=arguments, prog_name="tracerl")
    except TracerlError as error:
        sys.exit(f"error: {error}")


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
        bool, typer.Option("--skip-damaged", help="Leave damaged files out, and say which.")
    ] = False,
) -> None:
    """Query everything the run wrote: tasks, traces, rollouts, evals, checkpoints, metrics and
    runs.

    \b
    Examples:
      tracerl sql                                            a shell with history and completion
      tracerl sql "describe rollouts" tracerl sql "select stage, iteration, pass_rate(verdict) from
      rollouts group by all order by all" tracerl sql "select prompt, answer, text from evals join
      tasks using (task_id) where verdict = 'wrong' limit 20" tracerl sql "from rollouts where stage
      = 'rl@short' and iteration = 40" --out last.parquet
    docs/sql.md answers ten questions.
    """
    from tracerl.store.catalog import connect, damaged

    chosen = format or _format_of(out)
    if chosen is Format.parquet and out is None:
        raise DataError("Parquet is not for terminals", do="name a file with --out")
    if skip_damaged:
        for problem in damaged(root):
            print(f"left out: {problem}", file=sys.stderr)
    connection = connect(root, skip_damaged)
    if query is None:
        _shell(connection, chosen)
        return
    result = _answer(connection, query)
    _write(result.rename_columns(_distinct(result.column_names)), chosen, out)


def _shell(connection: Any, chosen: Format) -> None:
    from tracerl.store.shell import run_shell

    def run(query: str) -> None:
        try:
            result = _answer(connection, query)
        except TracerlError as error:
            print(f"error: {error}")
        else:
            _write(result.rename_columns(_distinct(result.column_names)), chosen, None)

    run_shell(connection, run, print, Path(typer.get_app_dir("tracerl")) / "sql_history")


def _answer(connection: Any, query: str) -> "pa.Table":
    """A query's result; one that takes longer than a second shows its progress on the error stream,
    and Ctrl-C stops it."""
    from concurrent.futures import ThreadPoolExecutor, wait

    from tracerl.store.catalog import answer

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answer, connection, query)
        try:
            if wait([asked], timeout=1.0).not_done and sys.stderr.isatty():
                _show_progress(connection, asked)
            return asked.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise DataError("the query was stopped", got=query) from None


def _show_progress(connection: Any, asked: Any) -> None:
    from concurrent.futures import wait

    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("query"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console(sys.stderr), transient=True) as progress:
        task = progress.add_task("query", total=None)
        while wait([asked], timeout=0.2).not_done:
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
        print(finding)
    if count:
        raise DataError(
            "the data are not sound",
            where=str(root / "data"),
            got=f"{count} findings, listed above",
            do="run the stages that wrote these files again",
        )
    print("Everything is sound.")


@data.command()
def accept(root: Root = Path(".")) -> None:
    """Make this run the one that later runs are compared with: its figures become
    reports/baseline.json.

    \b
    Examples:
      tracerl data accept && git add reports/baseline.json
    """
    from tracerl.disk import write_json
    from tracerl.store.expectations import accepted

    write_json(root / "reports" / "baseline.json", accepted(root / "reports" / "validation"))
    print(f"Accepted: {root / 'reports' / 'baseline.json'}")


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

    page = root / "data" / "scratch" / "watch.html"
    print(f"Open {page} in a browser; Ctrl-C ends.")
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
    from tracerl.reporting.trace_viewer import chosen_responses, render_viewer
    from tracerl.store.catalog import connect

    responses = chosen_responses(connect(root), condition, against, limit)
    shown = condition if against is None else f"before: {against}; after: {condition}"
    page = render_viewer(
        responses, load_tokenizer(root / "data" / "checkpoints" / "base", None), shown
    )
    write_text(out, page)
    print(f"{len(responses)} responses: {out}")


@app.command()
def summary(
    root: Root = Path("."),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The table alone, as it stands in the README.")
    ] = False,
) -> None:
    """Print the result table and where the report is.

    \b
    Examples:
      tracerl summary
      tracerl summary --markdown
    """
    from tracerl.reporting.summary import HEADINGS, markdown_table, read_summary, row_cells

    reports = root / "reports"
    rows = read_summary(reports / "metrics" / "summary.json")
    if markdown:
        print(markdown_table(rows))
        return
    table = _new_table(HEADINGS, [index >= 3 for index in range(len(HEADINGS))])
    for row in rows:
        table.add_row(*row_cells(row))
    _console().print(table)
    print(f"Report: {reports / 'report.html'}")


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
    print(f"{out}: weights {export_checkpoint(model, out, merge_lora or [], compute)}")


@app.command()
def doctor(
    params: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check it and estimate the memory of its stages."),
    ] = None,
    root: Root = Path("."),
) -> None:
    """Show devices, memory, attention back ends and versions; for a params file, its judges and
    what each stage needs.

    Forwards and TFLOP are upper bounds, everything being as large as its limits allow; "measured"
    is what the last run of a stage took (its memory is the whole process's). Exits with status 1 if
    a stage needs more memory than there is.

    \b
    Examples:
      tracerl doctor
      tracerl doctor --params params.yaml
      tracerl doctor --params profiles/sdar-4b.yaml
    """
    from tracerl.models.checkpoint import device_of
    from tracerl.reporting.doctor import judges, machine, measured, memory_limit, needs, readable
    from tracerl.settings.params import load_params

    table = _new_table(["what", "here"], [False, False])
    for row in machine():
        table.add_row(*row)
    _console().print(table)
    if params is None:
        return
    run = load_params(params)
    if run.verification.judges:
        table = _new_table(["judge", "kind", "state"], [False, False, False])
        for state in judges(run, root, os.environ):
            table.add_row(*state)
        _console().print(table)
    device, limit = device_of(run.compute), memory_limit(run.compute)
    wanted, found = needs(run, root), measured(root)
    memory = _new_table(
        ["memory", "weights", "optimizer", "passes", "total", "measured"], [False] + [True] * 5
    )
    work = _new_table(["work", "forwards", "measured", "TFLOP", "measured"], [False] + [True] * 4)
    for need in wanted:
        ran = found.get(need.stage)
        peak, forwards, flops = (
            (readable(ran["peak_bytes"]), f"{ran['forwards']:,}", f"{ran['flops'] / 1e12:,.2f}")
            if ran
            else [""] * 3
        )
        memory.add_row(
            need.stage, *map(readable, (need.weights, need.state, need.passes, need.total)), peak
        )
        work.add_row(need.stage, f"{need.forwards:,}", forwards, f"{need.flops / 1e12:,.2f}", flops)
    _console().print(memory, work)
    short = [need.stage for need in wanted if need.total > limit]
    print(
        f"{device} has {readable(limit)}: "
        + (f"too little for {', '.join(short)}" if short else "enough for every stage.")
    )
    if short:
        raise typer.Exit(1)


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
Seed = Annotated[
    int, typer.Option(min=0, help="Names the noise; equal seeds give equal responses.")
]


@app.command()
def generate(
    model: ModelDir,
    prompts: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="A .txt file (one prompt a line), or .jsonl or .parquet with prompt or prompt_ids.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")],
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
      --set cache=dual --set threshold=0.8 tracerl generate --model data/checkpoints/rl@wide
      --prompts p.txt --out r.parquet --params params.yaml --sampler evaluate.wide-k8
    """
    from tqdm import tqdm

    from tracerl.evaluation import generate as library
    from tracerl.models.checkpoint import policy_hash

    loaded, tokenizer = _load(model, device)
    settings = _settings(loaded, params, sampler, set_)
    rows = library.read_prompts(prompts, tokenizer, settings, template)
    print(_settings_line(settings), file=sys.stderr)
    with tqdm(total=len(rows) * num_samples, unit=" responses", dynamic_ncols=True) as bar:
        table = library.generate(
            loaded,
            tokenizer,
            rows,
            settings,
            num_samples,
            seed,
            policy_hash(loaded),
            out,
            save_every,
            lambda n: bar.update(n) and None,
        )
    ended = table["stop_reason"].to_pylist().count("end")
    tokens, passes = sum(table["num_tokens"].to_pylist()), sum(table["num_forwards"].to_pylist())
    per = f"{tokens / table.num_rows:.1f} tokens each, {tokens / passes:.2f} tokens per forward"
    print(f"{out}: {table.num_rows} responses, {ended} ended, {per}")


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
      tracerl chat --model data/checkpoints/rl@long tracerl chat --model SDAR-4B-Chat --set
      temperature=1.0 --set threshold=0.8 tracerl chat --model Dream-7B --set remasking=static --set
      steps_per_block=16 --set cache=prefix
    """
    from rich.console import Console

    from tracerl.reporting.chat import HELP, converse

    loaded, tokenizer = _load(model, device)
    settings = _settings(loaded, params, sampler, set_)
    console = Console(markup=False, emoji=False)
    console.print(_settings_line(settings), style="dim", highlight=False)
    console.print(HELP, style="dim", highlight=False)

    def read() -> str | None:
        try:
            return console.input("> ")
        except (EOFError, KeyboardInterrupt):
            return None

    converse(loaded, tokenizer, settings, seed, console, read)


@app.command()
def judge(
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
    from tracerl.rewards.judges.kinds import make_judge, trial
    from tracerl.settings.params import load_params

    run = load_params(params)
    judges = run.verification.judges or {}
    if name not in judges:
        raise DataError(
            "no judge of this name",
            where=f"{params}: verification.judges",
            got=name,
            wanted=", ".join(judges) or "none there",
        )
    key = os.environ.get(judges[name].api_key_variable or "")
    rows = trial(
        make_judge(name, judges[name], root, run.compute, key),
        kind,
        prompt,
        response,
        separator or [],
        answer,
        rubric,
    )
    table = _new_table(
        ["step" if separator else "response", "score", "undecided because"], [False, True, False]
    )
    for text, given in rows:
        table.add_row(
            _readable(text.strip()),
            "" if given.score is None else f"{given.score:+.2f}",
            _readable(given.reason),
        )
    _console().print(table)


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
    table = _new_table(headings, [index >= 2 for index in range(len(headings))])
    for row in rows:
        difference = f"{100 * row['difference']:+.1f}% [{100 * row['ci_low']:+.1f}, {100 * row['ci_high']:+.1f}]"
        shares = (f"{100 * row[side]:.1f}%" for side in ("first", "second"))
        table.add_row(
            str(row["benchmark"]),
            str(row["remasking"]),
            str(row["num_problems"]),
            *shares,
            difference,
            *(str(row[name]) for name in ("won", "lost", "tied")),
        )
    _console().print(table)
    if unpaired := sum(row["unpaired"] for row in rows):
        print(f"{unpaired} problems are in one of the two only and are left out.")


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
            help="Its file or directory; `hub` fetches it, `package` takes it from an installed one.",
        ),
    ],
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
    """
    from tracerl.evaluation.importing import add_data, import_lines

    print("\n".join(import_lines(add_data(name, source, root))))


@data.command("list")
def list_sets() -> None:
    """List the published sets that can be imported."""
    from tracerl.evaluation.benchmarks import BENCHMARKS

    table = _new_table(
        ("name", "split", "tasks", "licence", "source"), [False, False, True, False, False]
    )
    for item in BENCHMARKS.values():
        table.add_row(item.name, item.split, str(item.rows or ""), item.licence, item.source)
    _console().print(table)


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

    from tracerl.evaluation.generate import changed_settings, default_settings, sampler_of
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
    return changed_settings(settings, pairs)


def _settings_line(settings: "Sampler") -> str:
    return ", ".join(
        f"{key} {value}" for key, value in settings.model_dump().items() if value not in (None, "")
    )


def _format_of(out: Path | None) -> Format:
    if out is None:
        return Format.table
    try:
        return Format(out.suffix.removeprefix("."))
    except ValueError:
        raise DataError(
            "no format", where=str(out), wanted=", ".join(Format), do="name one with --format"
        ) from None


def _write(result: "pa.Table", chosen: Format, out: Path | None) -> None:
    """Writes a query's result in the chosen format, to a file or to the terminal."""
    if out is None:
        _write_text(result, chosen, sys.stdout)
        return
    try:
        if chosen is Format.parquet:
            import pyarrow.parquet as pq

            pq.write_table(result, out, compression="zstd")
        else:
            with out.open("w", encoding="utf-8", newline="") as file:
                _write_text(result, chosen, file)
    except OSError as error:
        raise DataError("the result cannot be written", where=str(out), got=error) from error


def _write_text(result: "pa.Table", chosen: Format, file: Any) -> None:
    if chosen is Format.table:
        rows = _rows(result.slice(0, _MAX_TABLE_ROWS))
        table = _new_table(
            result.column_names,
            [
                all(isinstance(row[name], int | float) for row in rows)
                for name in result.column_names
            ],
        )
        for row in rows:
            table.add_row(*(_readable(value) for value in row.values()))
        _console(file).print(table)
        if result.num_rows > _MAX_TABLE_ROWS:
            print(
                f"{result.num_rows - _MAX_TABLE_ROWS} of {result.num_rows} rows are not shown; --format csv writes all.",
                file=file,
            )
    elif chosen is Format.csv:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(result.column_names)
        writer.writerows([_cell(value) for value in row.values()] for row in _rows(result))
    else:
        json.dump(_rows(result), file, ensure_ascii=False, indent=1, default=str)
        file.write("\n")


def _rows(result: "pa.Table") -> list[dict[str, Any]]:
    """Rows as JSON has them: maps as objects, and null where a number is not a number."""
    return [
        {name: _plain(value) for name, value in row.items()}
        for row in result.to_pylist(maps_as_pydicts="strict")
    ]


def _distinct(names: Sequence[str]) -> list[str]:
    """A query may give two columns one name; the later ones get a number."""
    return [name if name not in names[:i] else f"{name}_{i + 1}" for i, name in enumerate(names)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, Decimal):  # what DuckDB gives for a sum of whole numbers
        return int(value) if value == value.to_integral_value() else float(value)
    return (
        None
        if isinstance(value, float) and (value != value or abs(value) == float("inf"))
        else value
    )


def _cell(value: Any) -> str:
    """A value as text; lists and maps are JSON."""
    if value is None:
        return ""
    return (
        json.dumps(value, ensure_ascii=False, default=str)
        if isinstance(value, list | dict)
        else str(value)
    )


def _readable(value: Any) -> str:
    """A cell for a terminal: short numbers, and nothing of a model's output that a terminal would
    obey."""
    from tracerl.reporting.terminal import printable

    return printable(f"{value:.6g}" if isinstance(value, float) else _cell(value))


def _new_table(headings: Sequence[str], numbers: Sequence[bool]) -> "Table":
    """A rich table; `numbers` says which columns are set to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading, number in zip(headings, numbers, strict=True):
        table.add_column(heading, justify="right" if number else "left")
    return table


def _console(file: Any = None) -> "Console":
    """A console that shows text as it is (model output is not markup) and does not squeeze tables
    where there is no terminal."""
    from rich.console import Console

    target = file or sys.stdout
    return Console(
        file=target,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if target.isatty() else 200,
    )
