"""Every profile is a whole params file that is up to date, fits its checkpoint's published shape,
and gives DVC a pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from profiles.make import PROFILES, text_of
from tracerl.models.families import FAMILIES
from tracerl.models.published_config import architecture_of
from tracerl.reporting.doctor import needs
from tracerl.settings.defaults import resolve
from tracerl.settings.params import Params, load_params

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "profiles"


def qwen(
    kind: str,
    vocabulary: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int,
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }


def llada(kind: str, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": kind,
        "embedding_size": vocabulary,
        "vocab_size": vocabulary,
        "d_model": 4096,
        "mlp_hidden_size": 12288,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "weight_tying": False,
        "mask_token_id": 126336,
        "block_type": "llama",
        "layer_norm_type": "rms",
        "activation_type": "silu",
        "torch_dtype": "bfloat16",
    }


# Published shapes by profile, and the parameters they have in thousand millions.
SDAR_1_7B = (qwen("sdar", 151936, 2048, 6144, 28, 16, 8), 2.03)
SDAR_4B = (qwen("sdar", 151936, 2560, 9728, 36, 32, 8), 4.41)
SDAR_8B = (qwen("sdar", 151936, 4096, 12288, 36, 32, 8), 8.19)
DREAM = (qwen("Dream", 152064, 3584, 18944, 28, 28, 4), 7.62)
SHAPES = {
    "sdar-1.7b": SDAR_1_7B,
    "sdar-4b": SDAR_4B,
    "sdar-8b": SDAR_8B,
    "sdar-4b-trado": SDAR_4B,
    "trado-4b": SDAR_4B,
    "trado-8b": SDAR_8B,
    "trado-8b-thinking": SDAR_8B,
    "llada-8b": (llada("llada", 126464), 8.02),
    "llada-1.5": (llada("llada", 126464), 8.02),
    "mmada-8b": (llada("mmada", 134656), 8.08),
    "dream-7b": DREAM,
    "dream-coder-7b": DREAM,
    "diffucoder-7b": DREAM,
}


def profile(name: str) -> Params:
    return load_params(FOLDER / f"{name}.yaml")


def test_every_checkpoint_has_its_profile():
    assert set(PROFILES) == set(SHAPES) == {path.stem for path in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("name", SHAPES)
def test_a_profile_is_what_make_writes(name):
    assert (FOLDER / f"{name}.yaml").read_text() == text_of(name), "run python -m profiles.make"


@pytest.mark.parametrize("name", SHAPES)
def test_a_profile_fits_the_published_shape(name, tmp_path):
    params, (config, billions) = profile(name), SHAPES[name]
    directory = tmp_path / str(params.base.path)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    found = {need.stage: need for need in needs(params, tmp_path)}
    assert found["base"].weights == pytest.approx(2e9 * billions, rel=0.005)
    family = FAMILIES[architecture_of(config, directory).family]
    for sampler in [one.sampler for one in params.evaluate.values()] + [
        one.sampler for one in params.rl.values()
    ]:
        assert family.attention == "full" or not sampler.cache.is_approximate, (
            "a block-causal family refuses approximate caches"
        )
        assert sampler.max_prompt_tokens + sampler.max_new_tokens <= 40960
    for round_ in params.rl.values():
        assert (round_.shrink == 1) is (family.attention == "block_causal")


def test_dvc_makes_a_pipeline_of_every_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    for name in SHAPES:
        shutil.copy(FOLDER / f"{name}.yaml", tmp_path / "params.yaml")
        with Repo() as repo:
            stages = {stage.addressing for stage in repo.index.stages}
        params = profile(name)
        rounds = {
            f"{kind}@{one}" for kind in ("sft", "rl", "evaluate") for one in getattr(params, kind)
        }
        assert stages >= rounds | {"tasks", "base", "traces", "report"}
        assert {stage for stage in stages if "@" in stage} >= rounds


PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
SETTINGS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")][:3]
    for line in PAGE.split("### The papers' settings")[1].splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize(("name", "key", "value"), SETTINGS)
def test_a_profile_has_the_settings_of_the_page(name, key, value):
    place: Any = resolve(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    for part in key.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]
    stated = yaml.safe_load(value)
    assert (list(place) if isinstance(stated, list) else place) == stated
