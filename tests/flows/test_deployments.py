"""prefect.yaml and the flows agree, flows can be pickled and their parameters are checked, without
a server."""

from typing import Any

import cloudpickle
import pytest
import yaml
from prefect.exceptions import ParameterTypeError

from flows.experiments import experiments
from flows.pipeline import pipeline
from flows.workspace import read_plan
from tests.tiny_run import ROOT

DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
FLOWS: dict[str, Any] = {
    "flows/pipeline.py:pipeline": pipeline,
    "flows/experiments.py:experiments": experiments,
}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_gives_its_flow_parameters_that_it_takes(deployment: dict[str, Any]) -> None:
    flow = FLOWS[deployment["entrypoint"]]
    parameters = deployment["parameters"]
    flow.validate_parameters(
        parameters if flow is pipeline else {"grid": {"seed": [1]}, **parameters}
    )
    assert read_plan(ROOT, parameters.get("targets", ()))
    assert deployment["concurrency_limit"]["limit"] == 1


def test_the_schedules_are_the_nightly_evaluation_and_the_weekly_full_run() -> None:
    schedules = {d["name"]: [s["cron"] for s in d.get("schedules", [])] for d in DEPLOYMENTS}
    assert schedules == {"full": ["0 20 * * 5"], "evaluate": ["0 3 * * *"], "grid": []}


@pytest.mark.parametrize("flow", FLOWS.values(), ids=lambda flow: flow.name)
def test_a_flow_can_be_pickled_as_serve_does_it(flow) -> None:
    assert cloudpickle.loads(cloudpickle.dumps(flow)).name == flow.name


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_parallel": 0},
        {"retries": 11},
        {"targets": "report"},
        {"overrides": [1]},
        {"force": "maybe"},
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterTypeError, match=next(iter(wrong))):
        pipeline.validate_parameters(
            {
                "targets": [],
                "overrides": {},
                "force": False,
                "max_parallel": 1,
                "retries": 0,
                **wrong,
            }
        )


def test_every_parameter_is_explained_in_the_ui() -> None:
    for flow in FLOWS.values():
        assert all(about.get("description") for about in flow.parameters.properties.values())
