"""Curves of training, as DVC's plots and the report read them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracerl.disk import write_text


def write_curve(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with the same keys as tab-separated values; floats with 6 significant digits."""
    lines = ["\t".join(rows[0])]
    for row in rows:
        cells = [
            f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()
        ]
        lines.append("\t".join(cells))
    write_text(path, "\n".join(lines) + "\n")
