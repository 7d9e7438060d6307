"""Every profile is a whole params file that is up to date, fits its checkpoint's published shape,
and gives DVC a pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from profiles.make import PROFILES, config_text_of, text_of
from profiles.shapes import CONFIGS
from tracerl.models.families import FAMILIES
from tracerl.reporting.doctor import needs, shape_of
from tracerl.settings.defaults import resolve
from tracerl.settings.params import Params, load_params

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "profiles"


# Parameters of each profile's checkpoint, in thousand millions.
BILLIONS = {
    "words": 0.1345,
    "words-cuda": 0.1345,
    "sdar-1.7b": 2.03,
    "sdar-4b": 4.41,
    "sdar-8b": 8.19,
    "sdar-4b-trado": 4.41,
    "trado-4b": 4.41,
    "trado-8b": 8.19,
    "trado-8b-thinking": 8.19,
    "trado-8b-long-cot": 8.19,
    "llada-8b": 8.02,
    "llada-1.5": 8.02,
    "mmada-8b": 8.08,
    "dream-7b": 7.62,
    "dream-coder-7b": 7.62,
    "diffucoder-7b": 7.62,
}


def profile(name: str) -> Params:
    return load_params(FOLDER / f"{name}.yaml")


def test_every_checkpoint_has_its_profile():
    assert set(PROFILES) == set(BILLIONS) == {path.stem for path in FOLDER.glob("*.yaml")}


def config_of(params: Params) -> dict[str, Any]:
    return CONFIGS[Path(str(params.base.path)).name]


def test_the_configs_are_what_make_writes():
    files = {path.stem: path.read_text() for path in (FOLDER / "configs").glob("*.json")}
    assert files == {name: config_text_of(name) for name in CONFIGS}, "run python -m profiles.make"


@pytest.mark.parametrize("name", BILLIONS)
def test_a_profile_is_what_make_writes(name):
    assert (FOLDER / f"{name}.yaml").read_text() == text_of(name), "run python -m profiles.make"


@pytest.mark.parametrize("name", BILLIONS)
def test_a_profile_fits_the_published_shape(name, tmp_path):
    params = profile(name)
    directory = tmp_path / str(params.base.path)
    directory.mkdir(parents=True)
    config = config_of(params)
    (directory / "config.json").write_text(json.dumps(config))
    found = {need.stage: need for need in needs(params, tmp_path)}
    assert found["base"].weights == pytest.approx(2e9 * BILLIONS[name], rel=0.005)
    family = FAMILIES[shape_of(params, tmp_path)[0].family]
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
    for name in BILLIONS:
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
