"""Where benchmarks put what they found: rows `name, ours_s, plain_s, ratio, target, equal` of
reports/metrics/benchmarks.json, by name."""

import json
from pathlib import Path
from typing import Any

from tracerl.disk import write_text

FILE = Path("reports/metrics/benchmarks.json")


def merge_rows(rows: list[dict[str, Any]], path: Path = FILE) -> None:
    """Puts rows into the file, in place of those of the same name, and prints them. Other fields of
    a row are its own."""
    held = {row["name"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    held |= {row["name"]: row for row in rows}
    write_text(path, json.dumps([held[name] for name in sorted(held)], indent=2) + "\n")
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row.items()
            )
        )


def row(
    name: str, ours_s: float, plain_s: float, target: float, equal: bool, **more: Any
) -> dict[str, Any]:
    """A row: seconds of ours and of the plain way, their ratio, the ratio that was aimed for, and
    whether both gave the same."""
    return {
        "name": name,
        "ours_s": round(ours_s, 3),
        "plain_s": round(plain_s, 3),
        "ratio": round(plain_s / ours_s, 3),
        "target": target,
        "equal": equal,
        **more,
    }


def alone(name: str, ours_s: float, **more: Any) -> dict[str, Any]:
    """A row of what is compared with nothing; `more` may hold a ratio and a target of its own."""
    return {
        "name": name,
        "ours_s": round(ours_s, 3),
        "plain_s": None,
        "ratio": None,
        "target": None,
        "equal": None,
        **more,
    }
