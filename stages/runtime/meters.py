"""Forward passes, floating-point operations and peak memory of a stage, counted while it runs."""

from dataclasses import asdict

import torch

from stages.runtime import paths
from stages.runtime.machine import machine_record
from tracerl.disk import write_json
from tracerl.models.cost import Meter, peak_memory
from tracerl.models.policy import Policy

_meters: dict[str, tuple[Meter, torch.device]] = {}


def measure(stage: str, *models: object) -> None:
    """Counts the passes of these models from now on, for `write_meters` at the stage's end.

    Of a stage that was resumed they are those of its last process. They are no output: two runs
    differ in them.
    """
    policies = [model for model in models if isinstance(model, Policy)]
    if not policies:
        return
    meter, _ = _meters.setdefault(stage, (Meter(), policies[0].device))
    for model in policies:
        meter.watch(model)


def counts(stage: str) -> dict[str, int]:
    """What this process has counted for a stage: name of the count -> number. Empty before
    `measure`."""
    if stage not in _meters:
        return {}
    return asdict(_meters[stage][0])


def write_meters(stage: str) -> None:
    """Writes logs/measured/<stage>.json: what `measure` counted, peak memory in bytes, and the
    machine."""
    if stage not in _meters:
        return
    meter, device = _meters[stage]
    record = {
        "peak_bytes": peak_memory(device),
        "machine": machine_record(),
        **asdict(meter),
    }
    write_json(paths.LOGS / "measured" / f"{stage}.json", record)
