"""Items of reasoning-gym (extra `gym`), and how each is judged.

Items are made in a process of their own, because five of its tasks depend on Python's hash seed; it
never sees what a model wrote. That process also tries each task's scorer, for several cannot be
trusted (found in version 0.1.25): some evaluate the answer as code, one pays any text, one pays
"nan", one pays numbers that are not the given ones. What decides an item is, in this order:

1. our own rules where there are some: countdown, puzzle24 (four numbers that make 24), mini_sudoku;
2. our mathematics where many forms are right: polynomial_multiplication, the integrals, and
basic_arithmetic, whose scorer divides with
   `//` and whose labels are replaced by the exact value;
3. exact text where the task's class has no scorer of its own, or one that evaluates text or pays
nonsense;
4. exact text, and else the task's scorer, inside the sandbox (`rewards/verify/scorer.py`).
"""

import ast
import inspect
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from tracerl.errors import ParamsError
from tracerl.puzzles import read_expression

_COMMAND = "from tracerl.gym import main; main()"
_ASK = "{question}\nGive the final answer between <answer> and </answer>."
_MATHEMATICS = ("polynomial_multiplication", "simple_integration", "intermediate_integration")
_NONSENSE = ("", "x", "nan", "None", "0 0", "[]", "{}", "(1)", "True False", "the answer")
_EVALUATORS = ("eval", "exec", "sympify", "parse_expr")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A problem of reasoning-gym that something of ours can judge."""

    prompt: str
    """The question, and how to give the answer."""
    kind: str
    """Of its verifier."""
    answer: str
    """"" if only a scorer can tell."""
    spec: str
    """What the verifier needs besides, "" for nothing."""


def gym_items(task: str, options: dict[str, Any], size: int, seed: int, where: str) -> list[Item]:
    """`size` items of a task. options: of the task's own configuration.

    Raises ParamsError if the package, the task or an option is missing, or if nothing of ours can
    judge the task.
    """
    request = json.dumps({"task": task, "options": options, "size": size, "seed": seed})
    environment = {
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "HOME": tempfile.gettempdir(),
    }
    command = [sys.executable, "-W", "ignore", "-c", _COMMAND]
    process = subprocess.run(
        command, input=request, capture_output=True, text=True, env=environment, check=False
    )
    if process.returncode == 3:
        raise ParamsError(
            "reasoning-gym is not installed", where=where, do="pip install 'tracerl[gym]'"
        )
    if process.returncode != 0:
        raise ParamsError(
            "reasoning-gym cannot make this task",
            where=where,
            got=f"{task} {options}",
            wanted=process.stderr.strip()[-600:],
        )
    reply = json.loads(process.stdout.rpartition("\n")[2])
    items = [item for entry in reply["entries"] if (item := _item(task, reply, entry)) is not None]
    if not items:
        raise ParamsError(
            "nothing can judge this task",
            where=where,
            got=task,
            wanted=(
                "a task with known answers, or a scorer that neither evaluates text nor pays "
                "nonsense"
            ),
        )
    return items


def _item(task: str, reply: dict[str, Any], text: str) -> Item | None:
    """An item of what the other process made; None if it has no known answer and no scorer that can
    be trusted."""
    entry = ast.literal_eval(text)
    metadata, answer = entry.get("metadata", {}), entry["answer"]
    prompt = _ASK.format(question=entry["question"].strip())
    if task in ("countdown", "puzzle24"):
        return Item(
            prompt=prompt,
            kind="countdown",
            answer=answer,
            spec=f"{','.join(map(str, metadata['numbers']))}={metadata.get('target', 24)}",
        )
    if task == "mini_sudoku":
        clues = _digits_of(metadata["puzzle"])
        grid = _digits_of(metadata["solution"])
        return Item(prompt=prompt, kind="sudoku", answer=grid, spec=clues)
    if task in _MATHEMATICS:
        return Item(prompt=prompt, kind="math", answer=answer, spec="")
    if task == "basic_arithmetic" and (exact := _exact_value(metadata["expression"])) is not None:
        return Item(prompt=prompt, kind="math", answer=exact, spec="")
    spec: dict[str, Any] = {}
    if isinstance(metadata.get("valid_answers"), list):
        spec["answers"] = metadata["valid_answers"]
    if reply["scorer"]:
        spec |= {
            "task": task,
            "module": reply["module"],
            "options": reply["options"],
            "entry": text,
        }
    if not reply["scorer"] and not answer:
        return None
    return Item(
        prompt=prompt, kind="gym", answer=answer or "", spec=json.dumps(spec) if spec else ""
    )


def _digits_of(rows: list[list[int]]) -> str:
    digits = ""
    for row in rows:
        digits += "".join(map(str, row))
    return digits


def _exact_value(expression: str) -> str | None:
    """The value of an expression whose numbers and brackets may have a sign; None if it divides by
    zero or is no plain arithmetic."""
    signed = re.sub(r"(?:(?<=[-+*/(])|^)-(\d+)", r"(0-\1)", expression.replace(" ", ""))
    signed = re.sub(r"(?:(?<=[-+*(])|^)-\(", "(0-1)*(", signed)
    arithmetic = read_expression(re.sub(r"(?<=/)-\(", "(0-1)/(", signed))
    return None if arithmetic is None or arithmetic[1] is None else str(arithmetic[1])


# What follows runs in the other process.


def main() -> None:
    """Reads one request as JSON from standard input, writes one reply as JSON on the last line of
    standard output."""
    try:
        import reasoning_gym
    except ImportError:
        sys.exit(3)
    request = json.load(sys.stdin)
    try:
        dataset = reasoning_gym.create_dataset(
            request["task"], size=request["size"], seed=request["seed"], **request["options"]
        )
        entries = [_portable(dataset[i]) for i in range(request["size"])]
    except (ValueError, TypeError, AssertionError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    kind = type(dataset)
    sound = (
        "score_answer" in vars(kind)
        and not _evaluates(kind.__module__)
        and all("metadata" in entry for entry in entries)
    )
    reply = {
        "entries": [repr(entry) for entry in entries],
        "module": kind.__module__,
        "options": request["options"],
        "scorer": bool(sound and _pays_only_answers(dataset, entries[:20])),
    }
    sys.stdout.write("\n" + json.dumps(reply))


def _plain(value: Any) -> Any:
    """The value with numpy's scalars as Python's."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return type(value)(_plain(item) for item in value)
    return (
        value.item()
        if hasattr(value, "item") and hasattr(value, "dtype") and value.ndim == 0
        else value
    )


def _portable(entry: dict[str, Any]) -> dict[str, Any]:
    """The item if it survives being written as a literal, else its question and answer alone."""
    whole = _plain(entry)
    try:
        if ast.literal_eval(repr(whole)) == whole:
            return dict(whole)
    except (ValueError, SyntaxError):
        pass
    return {"question": str(entry["question"]), "answer": entry["answer"] and str(entry["answer"])}


def _evaluates(module: str) -> bool:
    """Whether a module calls Python's or sympy's evaluation of text anywhere; a function of its own
    by such a name is none."""
    source = ast.parse(inspect.getsource(sys.modules[module]))
    definitions: set[str] = set()
    calls: set[str] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.FunctionDef):
            definitions.add(node.name)
        elif isinstance(node, ast.Call):
            function = node.func
            calls.add(getattr(function, "id", "") or getattr(function, "attr", ""))
    return bool(calls & set(_EVALUATORS) - definitions)


def _pays_only_answers(dataset: Any, entries: list[dict[str, Any]]) -> bool:
    """Whether the scorer pays every known answer in full, no nonsense, and as a rule neither a
    neighbour's answer nor both together.

    Not never: after moves that solve a board others may change nothing, and a neighbour's answer
    may happen to be right.
    """
    num_other, num_both = 0, 0
    for number, entry in enumerate(entries):
        answer, other = entry["answer"], entries[number - 1]["answer"]
        if answer is not None and not _pays(dataset, answer, entry):
            return False
        for text in (*_NONSENSE, entry["question"]):
            if text != answer and _pays(dataset, text, entry):
                return False
        if answer is not None and other != answer:
            num_other += _pays(dataset, other, entry)
            num_both += _pays(dataset, f"{answer} {other}", entry) or _pays(
                dataset, f"{other} {answer}", entry
            )
    return 2 * max(num_other, num_both) < len(entries)


def _pays(dataset: Any, answer: str, entry: dict[str, Any]) -> bool:
    try:
        return bool(dataset.score_answer(answer, entry) >= 1.0)
    except Exception:  # what a scorer cannot read it does not pay
        return False
