"""The adapter serves generation as the harness asks for it and refuses likelihoods.

A stand-in gives the harness's one base class, so that this is tested everywhere; with the extra
lm-eval the harness itself runs too.
"""

import json
import sys
import types
from types import SimpleNamespace

import pytest

from tests.tiny import tiny_architecture, tiny_sampler
from tracerl.errors import DataError
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.policy import new_model
from tracerl.models.tokenizer import character_tokenizer
from tracerl.seeds import generator_for


@pytest.fixture
def adapter(monkeypatch):
    module = types.ModuleType("lm_eval.api.model")
    vars(module)["LM"] = type("LM", (), {})
    for name, value in {
        "lm_eval": types.ModuleType("lm_eval"),
        "lm_eval.api": types.ModuleType("lm_eval.api"),
        "lm_eval.api.model": module,
    }.items():
        monkeypatch.setitem(sys.modules, name, value)
    monkeypatch.delitem(sys.modules, "tracerl.evaluation.lm_eval_adapter", raising=False)
    from tracerl.evaluation import lm_eval_adapter

    return lm_eval_adapter


def test_generation_is_cut_at_stops_and_likelihood_is_refused(adapter, tmp_path):
    tokenizer = character_tokenizer()
    architecture = tiny_architecture(
        "sdar", vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id
    )
    save_checkpoint(new_model(architecture, generator_for(1, "lm")), tokenizer, tmp_path / "model")
    model = adapter.TracerlLM(tmp_path / "model", tiny_sampler(), seed=1)

    def request(context, until):
        return SimpleNamespace(args=(context, {"until": until}))

    plain = model.generate_until([request("1+1=", []), request("1+2=", []), request("1+1=", [])])
    assert plain[0] != plain[2], "a repeat has noise of its own"
    assert model.generate_until([request("1+2=", [])]) == [plain[1]]
    stop = plain[1][2]
    assert model.generate_until([request("1+2=", [stop, "never there"])]) == [
        plain[1][: plain[1].index(stop)]
    ]
    with pytest.raises(DataError, match="likelihood"):
        model.loglikelihood([])
    with pytest.raises(DataError, match="likelihood"):
        model.loglikelihood_rolling([])


@pytest.mark.filterwarnings("ignore")  # the harness's own, and those of what it imports
def test_the_harness_itself_evaluates_a_task_of_local_data(tmp_path, monkeypatch):
    """Two of four answers are what the model says, so the harness must find one half."""
    pytest.importorskip("lm_eval", reason="needs the extra lm-eval")
    # Which may have the stand-in's class.
    monkeypatch.delitem(sys.modules, "tracerl.evaluation.lm_eval_adapter", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager

    from tracerl.evaluation.lm_eval_adapter import TracerlLM

    tokenizer = character_tokenizer()
    architecture = tiny_architecture(
        "sdar", vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id
    )
    save_checkpoint(new_model(architecture, generator_for(1, "lm")), tokenizer, tmp_path / "model")
    model = TracerlLM(tmp_path / "model", tiny_sampler(), seed=1)
    asked = [f"{i}+1=" for i in range(4)]
    said = model.generate_until(
        [SimpleNamespace(args=(context, {"until": ["\n"]})) for context in asked]
    )
    rows = [
        {"asked": context, "known": text if i < 2 else text + "?"}
        for i, (context, text) in enumerate(zip(asked, said, strict=True))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ConfigurableTask(
        config={
            "task": "local",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{asked}}",
            "doc_to_target": "{{known}}",
            "generation_kwargs": {"until": ["\n"]},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
            ],
        }
    )
    result = simple_evaluate(
        model=model,
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
    )
    assert result["results"]["local"]["exact_match,none"] == 0.5
    assert [sample["resps"] for sample in result["samples"]["local"]] == [[[text]] for text in said]
