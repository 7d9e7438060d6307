"""The CPU that a stage computes on, and the width of its vectors."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tracerl.errors import ParamsError

LIBRARIES = ("torch", "numpy", "pyarrow", "duckdb", "safetensors")
_NEEDS = {
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f", "avx512vl", "avx512bw", "avx512dq"},
}


def pin_vectors(vectors: str) -> None:
    """Keeps torch's CPU kernels to vectors of one width (`compute.vectors`), so that every x86 CPU
    that has them gives the same bits.

    torch reads the variable when it first computes, which is after this. Raises ParamsError if this
    CPU lacks these instructions, or if torch has chosen its kernels before. No effect on ARM.
    """
    import torch

    if vectors == "widest":
        os.environ.pop("ATEN_CPU_CAPABILITY", None)
        return
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    flags = _cpu_flags()
    if flags and not _NEEDS[vectors] <= flags:
        raise ParamsError(
            "this CPU has no vector instructions of this width",
            where="params.yaml: compute.vectors",
            got=vectors,
            do="set compute.vectors to widest; the last bits then differ from other machines'",
        )
    os.environ["ATEN_CPU_CAPABILITY"] = vectors
    used = torch.backends.cpu.get_cpu_capability().lower()
    if used != vectors:
        raise ParamsError(
            "torch computes with vectors of another width",
            where="params.yaml: compute.vectors",
            got=used,
            wanted=vectors,
            do=f"start the process with ATEN_CPU_CAPABILITY={vectors} in its environment",
        )


def library_versions() -> dict[str, str]:
    """Public versions of the libraries that compute and store results, without the build (+cpu)."""
    return {name: version(name).partition("+")[0] for name in LIBRARIES}


def machine_record() -> dict[str, Any]:
    """CPU, system, threads, the vector width in use, and versions of Python and the libraries."""
    import torch

    return {
        "cpu": _cpu_fields().get("model name", platform.processor()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch_build": version("torch"),
        "libraries": library_versions(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability().lower(),
    }


def _cpu_flags() -> set[str]:
    """The instruction sets that Linux says this CPU has; empty where it cannot be read."""
    return set(_cpu_fields().get("flags", "").split())


def _cpu_fields() -> dict[str, str]:
    """What Linux says about the first CPU; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return {}
    fields = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields
