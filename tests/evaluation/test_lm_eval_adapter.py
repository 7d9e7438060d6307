"""The adapter serves generation as the harness asks for it and refuses likelihoods. A stand-in gives the harness's one base class."""

import sys
import types
from types import SimpleNamespace

import pytest

from tests.tiny import tiny_sampler
from tracerl.errors import DataError
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.transformer import new_model
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
    from tests.tiny import tiny_architecture

    tokenizer = character_tokenizer()
    architecture = tiny_architecture("sdar", vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id)
    save_checkpoint(new_model(architecture, generator_for(1, "lm")), tokenizer, tmp_path / "model")
    model = adapter.TracerlLM(tmp_path / "model", tiny_sampler(), seed=1)

    def request(context, until):
        return SimpleNamespace(args=(context, {"until": until}))

    plain = model.generate_until([request("1+1=", []), request("1+2=", []), request("1+1=", [])])
    assert plain[0] != plain[2], "a repeat has noise of its own"
    assert model.generate_until([request("1+2=", [])]) == [plain[1]]
    stop = plain[1][2]
    assert model.generate_until([request("1+2=", [stop, "never there"])]) == [plain[1][: plain[1].index(stop)]]
    with pytest.raises(DataError, match="likelihood"):
        model.loglikelihood([])
    with pytest.raises(DataError, match="likelihood"):
        model.loglikelihood_rolling([])
