"""The params file: what is shipped parses, and everything wrong in it is named by its path before
anything runs."""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.rounds import METHOD_VALUES, SERVER, round_of
from tests.tiny import cache_of, order_of
from tracerl.errors import ParamsError
from tracerl.settings.defaults import resolve
from tracerl.settings.params import Params, load_params, parse_params
from tracerl.settings.rewards import ServerJudge

SHIPPED = Path(__file__).parents[1] / "params.yaml"
DATA = resolve(yaml.safe_load(SHIPPED.read_text(encoding="utf-8")))


def changed(path: str, value: Any, data: Any = DATA) -> Any:
    """The shipped params with one entry replaced. path: keys with dots between them."""
    data = copy.deepcopy(data)
    *parents, last = path.split(".")
    place = data
    for part in parents:
        place = place[part]
    place[last] = value
    return data


def error_of(data: Any) -> str:
    with pytest.raises(ParamsError) as raised:
        parse_params(data, where="params.yaml")
    return str(raised.value)


def sections(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """(path, keys) of every section of parsed params."""
    if isinstance(value, BaseModel):
        names = list(type(value).model_fields)
        yield path, names
        for name in names:
            yield from sections(getattr(value, name), (*path, name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from sections(item, (*path, str(key)))


def test_the_shipped_params_parse():
    params = load_params(SHIPPED)
    assert {
        "base",
        *(f"sft@{name}" for name in params.sft),
        *(f"rl@{name}" for name in params.rl),
    } >= {"base", "sft@short", "rl@short"}
    assert parse_params(DATA, where="") == params


def test_params_cannot_be_changed_after_they_were_read():
    with pytest.raises(ValueError, match="frozen"):
        load_params(SHIPPED).seed = 2


def test_an_unknown_key_is_named_by_its_path_with_the_key_that_is_near():
    found = list(sections(load_params(SHIPPED)))
    assert len(found) > 15
    for path, keys in found:
        for key in keys:
            text = error_of(changed(".".join((*path, key + "_")), 1))
            assert f"{'.'.join((*path, key + '_'))}: unknown key; did you mean {key!r}?" in text


def test_an_unknown_key_that_is_like_no_other_is_named_with_all_that_exist():
    text = error_of(changed("rl.short.optimizer.zzzz", 1))
    assert (
        "rl.short.optimizer.zzzz: unknown key; "
        "known here: lr, betas, weight_decay, clip_norm, warmup, decay" in text
    )


@pytest.mark.parametrize(
    "path",
    [
        "seed",
        "rl.short.sampler.order.threshold",
        "base.train.optimizer.lr",
        "evaluation.bootstrap",
        "report.num_traces",
    ],
)
def test_a_missing_key_is_named_by_its_path(path):
    data = copy.deepcopy(DATA)
    *parents, last = path.split(".")
    place = data
    for part in parents:
        place = place[part]
    del place[last]
    text = error_of(data)
    assert path in text
    assert "required" in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", "one"),
        ("seed", -1),
        ("seed", None),
        ("rl.short.iterations", "40"),
        ("rl.short.iterations", 40.5),
        ("rl.short.iterations", True),
        ("rl.short.iterations", 0),
        ("rl.short.optimizer.lr", "1e-4"),  # what YAML makes of 1e-4 without a dot
        ("rl.short.optimizer.lr", 0.0),
        ("rl.short.optimizer.betas", 0.9),
        ("rl.short.sampler.cache", "yes"),
        ("rl.short.sampler.cache", 1),
        ("rl.short.sampler.order", "dynamical"),
        ("rl.short.sampler.order.threshold", "0.9"),
        ("validation.pass_rate", 0.5),
        ("validation.truncation", 1.1),
        ("validation.drift", 0.0),
        ("report.num_played", -1),
        ("rl.short.sampler.schedule", "odd"),
        ("rl.short.sampler.confidence_of", "mean"),
        ("rl.short.sampler.order.bound", -0.1),
        ("rl.short.sampler.order.temperature", 0.0),
        ("rl.short.sampler.order.score", "logit"),
        ("rl.short.sampler.guidance", -1.0),
        ("rl.short.sampler.opening", None),
        ("rl.short.sampler.cache.horizon", -1),
        ("rl.short.sampler.cache.refresh_every", 0),
        ("rl.short.sampler.cache.refresh_sees", "prompt"),
        ("rl.short.sampler.top_p", 0.0),
        ("rl.short.kl", "k4"),
        ("rl.short.group_size", 1),
        ("rl.short.tasks", ["sums-short"]),
        ("base.model.family", "bert"),
        ("sft.short.objective.shrink", 0),
        ("sft.short", None),
        ("sft.short.data", "worked"),
        ("evaluate.sft-short.tasks", "sums-short"),
        ("tasks.held_out", 1.0),
        ("tasks.sets.sums-short.source", "products"),
        ("traces", []),
    ],
)
def test_a_mistyped_value_is_named_by_its_path_with_what_was_got(path, value):
    data = copy.deepcopy(DATA)
    kinds = {"bound": "entropy", "temperature": "plackett_luce", "score": "plackett_luce"}
    section, key = ("", *path.split("."))[-2:]
    if section == "order" and key in kinds:
        data["rl"]["short"]["sampler"]["order"] = order_of(kinds[key])
    if section == "cache":
        data["rl"]["short"]["sampler"]["cache"] = cache_of("window")
    text = error_of(changed(path, value, data))
    assert path in text
    assert f"got {value!r}" in text
    assert "where: params.yaml" in text


def test_a_range_of_pass_rates_has_its_ends_in_order():
    assert "pass_rate must be a range inside [0, 1], got (0.9, 0.1)" in error_of(
        changed("validation.pass_rate", [0.9, 0.1])
    )


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    "path",
    [
        "rl.short.optimizer.lr",
        "rl.short.kl_weight",
        "base.model.rope_theta",
        "rl.short.optimizer.clip_norm",
    ],
)
def test_a_number_that_is_not_finite_is_an_error(path, value):
    assert path in error_of(changed(path, value))


def test_a_whole_number_may_stand_for_a_fraction():
    assert (
        parse_params(changed("rl.short.optimizer.clip_norm", 1), "").rl["short"].optimizer.clip_norm
        == 1.0
    )


def test_every_wrong_entry_is_reported_at_once():
    data = changed("seed", "one")
    data["threads"], data["rl"]["short"]["updates"] = 0, "two"
    text = error_of(data)
    assert "3 wrong entries" in text
    assert all(path in text for path in ("seed", "threads", "rl.short.updates"))


# Values that do not fit each other


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("rl.short.train_block_size", 6, ["rl.short", "train_block_size 6", "block_size 4"]),
        ("rl.short.train_block_size", 2, ["rl.short", "train_block_size 2", "block_size 4"]),
        (
            "rl.short.sampler.steps_per_block",
            5,
            ["rl.short.sampler", "steps_per_block 5", "block_size 4"],
        ),
        (
            "evaluate.sft-short.sampler.block_size",
            2,
            ["evaluate.sft-short.sampler", "steps_per_block 4", "block_size 2"],
        ),
        ("traces.step_tokens", 3, ["traces", "step_tokens 3", "pick 2"]),
        ("traces.preferred.sums-short", -1, ["traces.preferred.sums-short", "-1"]),
        ("sft.long.objective", {"kind": "trace", "shrink": 1}, ["sft.long", "needs data 'traces'"]),
        (
            "sft.short.tasks",
            {"sums-long": 1},
            ["sft.short", "no traces are collected", "sums-long"],
        ),
        ("base.train.objective", {"kind": "trace", "shrink": 1}, ["base", "cannot be 'trace'"]),
        ("tasks.sets", {"../up": {}}, ["../up", "pattern"]),
        ("base.train.objective.noise", [0.5, 0.5], ["base.train.objective", "(0.5, 0.5)"]),
        ("base.train.objective.noise", [0.0, 1.5], ["base.train.objective", "(0.0, 1.5)"]),
        ("rl.short.sampler.top_k", 5, ["rl.short", "off-policy", "top_k"]),
        ("rl.short.sampler.top_p", 0.9, ["rl.short", "off-policy", "top_p"]),
        ("rl.short.sampler.temperature", 0.0, ["rl.short", "temperature"]),
        ("rl.short.sampler.guidance", 0.5, ["rl.short", "without guidance"]),
        (
            "rl.short.sampler.edit",
            {"threshold": 0.5, "max_post_steps": 4},
            ["rl.short", "sampler.edit"],
        ),
        (
            "traces.sampler.edit",
            {"threshold": 0.5, "max_post_steps": 4},
            ["traces", "sampler.edit"],
        ),
        (
            "rl.short.held_out.modes",
            {"slow": {"steps_per_block": 5}},
            ["rl.short", "held_out.modes.slow", "steps_per_block 5"],
        ),
        (
            "evaluation.modes",
            {"greedy": {"temperature": 0.0, "top_k": 5}},
            ["evaluate.sft-short", "evaluation.modes.greedy", "at temperature 0"],
        ),
        (
            "evaluation.modes",
            {"static": {"order": {"kind": "entropy"}}},
            ["evaluation.modes.static.order.bound"],
        ),
        ("evaluation.modes", {}, ["evaluation.modes"]),
        (
            "rl.short.sampler.order",
            {"kind": "dynamical"},
            ["rl.short.sampler.order.kind", "'dynamic'", "got 'dynamical'"],
        ),
        ("rl.short.max_sampled_groups", 1, ["rl.short", "groups <= max_sampled_groups"]),
        ("rl.short.min_groups", 1000, ["rl.short", "min_groups <= groups"]),
        ("tasks.sets.sums-short.difficulty", [4, 2], ["tasks.sets.sums-short", "difficulty"]),
        ("tasks.sets.sums-short.difficulty", [0, 2], ["tasks.sets.sums-short", "difficulty"]),
        ("tasks.sets.sums-short.difficulty", None, ["tasks.sets.sums-short", "difficulty"]),
        ("tasks.sets.sums-short.source", "file", ["tasks.sets.sums-short.path", "required"]),
    ],
)
def test_values_that_do_not_fit_are_named(path, value, told):
    text = error_of(changed(path, value))
    assert all(part in text for part in told), text


def with_sampler(**changes: Any) -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    data["evaluate"]["sft-short"]["sampler"] = {
        **data["evaluate"]["sft-short"]["sampler"],
        **changes,
    }  # others share it
    return data


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"order": order_of("dynamic", threshold=1.5)}, "threshold 1.5 must be in [0, 1]"),
        ({"confidence": "neg_entropy"}, "threshold 0.9 can never be exceeded"),
        (
            {
                "confidence": "neg_entropy",
                "order": order_of("dynamic", threshold=-1.0),
                "confidence_of": "max",
            },
            "not of a token",
        ),
        ({"confidence": "margin", "confidence_of": "max"}, "not of a token"),
        ({"confidence": "filtered"}, "needs top_k of at least 2 or top_p below 1"),
        ({"confidence": "filtered", "top_k": 1}, "with top_k 1 every confidence is 1"),
        ({"temperature": 0.0, "top_k": 5}, "at temperature 0 the most likely token is taken"),
        (
            {"temperature": 0.0, "confidence": "tempered"},
            "at temperature 0 the most likely token is taken",
        ),
        ({"order": {"kind": "entropy"}}, "sampler.order.bound: Field required"),
        (
            {"order": {"kind": "plackett_luce", "score": "max_logit"}},
            "sampler.order.temperature: Field required",
        ),
        ({"order": {"kind": "static", "threshold": 0.9}}, "sampler.order.threshold: unknown key"),
        (
            {"cache": {"kind": "window", "refresh_every": None}},
            "sampler.cache.horizon: Field required",
        ),
        (
            {"cache": {"kind": "window", "refresh_every": None, "horizon": 8}},
            "sampler.cache.refresh_sees: Field required",
        ),
        ({"cache": {"kind": "exact", "horizon": 8}}, "sampler.cache.horizon: unknown key"),
        ({"cache": {"kind": "exact", "refresh_every": 4}}, "cache.refresh_every: unknown key"),
        ({"cache": "exact"}, "sampler.cache: must be a section with a kind"),
    ],
    ids=str,
)
def test_sampler_settings_that_have_no_effect_together_are_refused(changes, told):
    text = error_of(with_sampler(**changes))
    assert "evaluate.sft-short.sampler" in text
    assert told in text


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": "neg_entropy", "order": order_of("dynamic", threshold=-1.0)},
        {"confidence": "filtered", "top_p": 0.9},
        {"order": order_of("entropy")},
        {"order": order_of("plackett_luce")},
        {"cache": cache_of("window", horizon=0)},
        {"cache": cache_of("dual", refresh_every=4), "guidance": 0.5, "schedule": "dream"},
    ],
    ids=str,
)
def test_sampler_settings_that_fit_are_accepted(changes):
    data = with_sampler(**changes)
    data["evaluation"]["modes"] = {"static": {"order": {"kind": "static"}}}
    sampler = parse_params(data, "").evaluate["sft-short"].sampler
    tree = sampler.model_dump()
    assert {name: tree[name] for name in changes} == changes


def test_an_evaluation_samples_each_set_as_often_as_the_mode_the_set_or_the_section_says():
    data = copy.deepcopy(DATA)
    section = {**data["evaluation"], "num_samples": 3, "samples": {"sums-long": 20}}
    static = {"order": order_of("static"), "top_k": 1, "num_samples": 1}
    data["evaluation"] = {**section, "modes": {"static": static, "dynamic": {}}}
    evaluation = parse_params(data, "").evaluation
    counts = {}
    for task_set in ("sums-short", "sums-long"):
        for mode in ("static", "dynamic"):
            counts[task_set, mode] = evaluation.samples_of(task_set, mode)
    assert list(counts.values()) == [1, 3, 1, 20]
    assert evaluation.model_dump()["samples"] == {"sums-long": 20}


def test_samples_of_no_set_leave_no_trace_in_what_a_stage_reads():
    assert "samples" not in parse_params(DATA, "").evaluation.model_dump()


def test_samples_of_a_set_that_is_not_evaluated_are_refused():
    data = changed("evaluation.samples", {"aime24": 20})
    with pytest.raises(ParamsError, match=r"evaluation.samples(?s:.*)no evaluation(?s:.*)aime24"):
        parse_params(data, "")


def test_rl_on_filtered_samples_is_allowed_where_it_is_asked_for():
    data = changed("rl.short.allow_filtered", True)
    data["rl"]["short"]["sampler"] = {**data["rl"]["short"]["sampler"], "top_k": 5}
    assert parse_params(data, "").rl["short"].sampler.filters


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("base.train.block_sizes", {}),
        ("base.train.block_sizes", {0: 1.0}),
        ("base.train.block_sizes", {4: -0.5, 8: 1.5}),
        ("base.train.block_sizes", {4: 0.0}),
        ("sft.short.tasks", {}),
        ("sft.short.tasks", {"sums-short": 0.0}),
        ("rl.short.tasks", {}),
        ("rl.short.tasks", {"sums-short": -1.0}),
        ("rl.short.pass_rate", [0.9, 0.1]),
        ("rl.short.clip", [-0.2, 0.2]),
        ("rl.short.optimizer.betas", [0.9, 1.0]),
        ("base.model.num_kv_heads", DATA["base"]["model"]["num_heads"] + 1),
        ("base.model.head_dim", 15),  # rotary positions turn pairs
        ("evaluate.sft-short.tasks", []),
    ],
    ids=str,
)
def test_values_that_would_only_fail_in_the_middle_of_a_run_are_named_before_it(path, value):
    assert path.rpartition(".")[0] in error_of(changed(path, value))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("traces.checkpoint", "traces"),
        ("sft.short.init", "sft.short"),
        ("rl.short.init", "rl.short"),
        ("evaluate.sft-short.checkpoint", "evaluate.sft-short"),
    ],
)
def test_an_unknown_checkpoint_is_named_with_those_that_exist(path, place):
    text = error_of(changed(path, "rl@shrt"))
    assert all(part in text for part in (place, "rl@shrt", "base", "sft@short", "rl@short"))


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("base.train.tasks", {"sums-shrt": 1}, "base.train"),
        ("sft.short.tasks", {"sums-shrt": 1}, "sft.short"),
        ("rl.short.tasks", {"sums-shrt": 1}, "rl.short"),
        ("traces.preferred", {"sums-shrt": 1}, "traces"),
        ("traces.rollouts", {"sums-shrt": 1}, "traces"),
        ("evaluate.sft-short.tasks", ["sums-shrt"], "evaluate.sft-short"),
    ],
)
def test_an_unknown_task_set_is_named_with_those_that_exist(path, value, place):
    text = error_of(changed(path, value))
    assert all(part in text for part in (place, "sums-shrt", "sums-short", "arithmetic-long"))


def test_dropout_does_not_go_with_layers_that_are_computed_twice():
    data = changed("compute.checkpoint_layers", True)
    data["sft"]["short"]["lora"] = {"rank": 2, "alpha": 1.0, "dropout": 0.1, "targets": ["q_proj"]}
    assert "sft.short: checkpoint_layers" in error_of(data)


@pytest.mark.parametrize("init", ["rl@short", "rl@long"])
def test_a_round_that_starts_from_itself_or_its_descendant_is_an_error(init):
    data = changed("rl.short.init", init)
    data["rl"].setdefault("long", {**copy.deepcopy(DATA["rl"]["short"]), "init": "rl@short"})
    if init == "rl@long":
        data["rl"]["long"]["init"] = "rl@short"
    assert "rl.short" in error_of(data)


# Defaults, and what differs


RAW = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything that is no mapping."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, tree


def set_at(tree: Any, path: tuple[str, ...], value: Any) -> Any:
    tree = copy.deepcopy(tree)
    place = tree
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return tree


def differences(first: Any, second: Any) -> set[tuple[str, ...]]:
    one, other = dict(leaves(first)), dict(leaves(second))
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}


def test_an_override_of_any_key_of_the_shipped_file_changes_that_section_only():
    """As `dvc exp run -S rl.short.optimizer.lr=...` does: the key's section, and no other one."""
    paths = [path for path, _ in leaves(RAW) if path[0] != "defaults"]
    assert len(paths) > 200
    for path in paths:
        assert differences(resolve(set_at(RAW, path, "changed")), DATA) == {path}, path


def test_a_default_changes_every_section_that_does_not_say_otherwise():
    written = {place for place, _ in leaves(RAW)}
    effective = 0
    for path, _ in leaves(RAW["defaults"]):
        found = differences(resolve(set_at(RAW, ("defaults", *path), "changed")), DATA)
        effective += bool(found)
        key = path[1:] if path[0] in ("sft", "rl", "evaluate") else path
        assert all(place[-len(key) :] == key for place in found), path
        assert not found & written, "what a section says itself is not changed"
    assert effective > 40


def test_the_nearest_default_holds_and_another_kind_replaces_a_whole_section():
    tree = {
        "defaults": {
            "sampler": {"top_k": 0, "order": {"kind": "dynamic", "threshold": 0.9}},
            "optimizer": {"lr": 1.0, "warmup": 50},
            "rl": {"optimizer": {"lr": 2.0}, "tasks": {"a": 1}, "sampler": {"top_k": 1}},
        },
        "rl": {
            "x": {"tasks": {"b": 1}, "optimizer": {"warmup": 4}},
            "y": {"sampler": {"order": {"kind": "static"}}},
            "z": {"sampler": {"order": {"threshold": 0.5}}},
        },
    }
    dynamic = {"kind": "dynamic", "threshold": 0.9}
    assert resolve(tree) == {
        "rl": {
            "x": {
                "optimizer": {"lr": 2.0, "warmup": 4},
                "tasks": {"b": 1},
                "sampler": {"top_k": 1, "order": dynamic},
            },
            "y": {
                "optimizer": {"lr": 2.0, "warmup": 50},
                "tasks": {"a": 1},
                "sampler": {"top_k": 1, "order": {"kind": "static"}},
            },
            "z": {
                "optimizer": {"lr": 2.0, "warmup": 50},
                "tasks": {"a": 1},
                "sampler": {"top_k": 1, "order": {"kind": "dynamic", "threshold": 0.5}},
            },
        }
    }


@pytest.mark.parametrize("defaults", [{"rll": {}}, {"traces": {}}, ["rl"], "rl"], ids=str)
def test_defaults_of_something_that_has_none_are_an_error(defaults):
    text = error_of({**RAW, "defaults": defaults})
    assert "defaults" in text
    assert "optimizer, sampler, sft, rl, evaluate" in text


def test_the_file_of_a_stage_has_no_anchor():
    assert not any(
        line.split(": ")[-1].startswith(("&", "*")) for line in SHIPPED.read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("path", "value", "instead"),
    [
        ("rl.short.sampler.remasking", "static", "order: {kind: ...}"),
        ("traces.sampler.threshold", 0.9, "order: {kind: dynamic, threshold: ...}"),
        ("rl.short.sampler.entropy_bound", None, "order: {kind: entropy, bound: ...}"),
        ("rl.short.sampler.order_temperature", None, "{kind: plackett_luce, temperature: ...}"),
        ("rl.short.sampler.order_score", None, "{kind: plackett_luce, score: ...}"),
        ("evaluate.wide.sampler.horizon", None, "cache: {kind: window, horizon: ...}"),
        ("rl.short.sampler.refresh_every", None, "cache: {kind: ..., refresh_every: ...}"),
        ("rl.short.sampler.refresh_sees", None, "cache: {kind: window, refresh_sees: ...}"),
        ("rl.short.sampler.cache", "exact", "such as {kind: none, ...}"),
        ("rl.short.held_out.remasking", ["static"], "modes: {static: {order: {kind: static}}}"),
        ("evaluation.remasking", ["static"], "modes: {static: {order: {kind: static}}}"),
        ("rl.short.method", "tracerl", "such as {kind: tracerl, ...}"),
        ("rl.short.copies", 2, "method: {kind: ..., copies: ...}"),
        ("rl.short.order_clip", [0.2, 0.2], "method: {kind: ..., order_clip: ...}"),
        ("sft.short.objective", "trace", "such as {kind: random, ...}"),
        ("sft.short.noise", [0.0, 1.0], "objective: {kind: ..., noise: ...}"),
        ("base.train.weighting", "uniform", "objective: {kind: ..., weighting: ...}"),
        ("sft.long.shrink", 1, "objective: {kind: ..., shrink: ...}"),
    ],
)
def test_a_key_of_an_older_file_is_named_with_what_to_write_instead(path, value, instead):
    text = error_of(changed(path, value))
    assert path in text
    assert instead in text


# The file itself


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n"])
def test_a_file_that_holds_no_params_is_named(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError, match=str(path)):
        load_params(path)


@pytest.mark.parametrize(
    "text",
    [
        "seed: [1\n",
        "seed: 1\n\tthreads: 2\n",
        "seed: 2024-01-01\n",  # YAML's own types
        "seed: !!python/object:builtins.object {}\n",
        "{[1, 2]: 3}\n",
        "seed: &a [*a]\n",  # holds itself
        "[" * 5000,
        "- " * 5000,
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError, match=str(path)):
        load_params(path)


def test_anchors_that_stand_for_millions_of_values_are_refused_unwritten(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]\n"]
    for i in range(1, 9):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n")
    path = tmp_path / "params.yaml"
    path.write_text("".join(lines))
    with pytest.raises(ParamsError, match="values once its anchors are written out"):
        load_params(path)


def test_a_key_that_stands_twice_is_an_error_not_the_last_one(tmp_path):
    path = tmp_path / "params.yaml"
    shutil.copy(SHIPPED, path)
    path.write_text(path.read_text(encoding="utf-8") + "\nseed: 2\n")
    with pytest.raises(ParamsError, match="seed"):
        load_params(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ParamsError, match=str(tmp_path / "nowhere.yaml")):
        load_params(tmp_path / "nowhere.yaml")


def test_no_number_that_changes_results_has_a_default_in_code():
    def defaults(model: type[BaseModel], seen: set[type]) -> list[str]:
        seen.add(model)
        found = [
            f"{model.__name__}.{name}"
            for name, f in model.model_fields.items()
            if not f.is_required() and f.default is not None
        ]
        parts = [
            part
            for f in model.model_fields.values()
            for part in (f.annotation, *getattr(f.annotation, "__args__", ()))
        ]
        inner = [
            part
            for part in parts
            if isinstance(part, type) and issubclass(part, BaseModel) and part not in seen
        ]
        return found + [name for part in inner for name in defaults(part, seen)]

    assert defaults(Params, set()) == []


def with_method(**changes: Any) -> Any:
    """The shipped params with rl.short changed in several keys at once."""
    data = copy.deepcopy(DATA)
    data["rl"]["short"].update(changes)
    return data


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"method": {"kind": "random"}}, ["rl.short.method.copies", "rl.short.method.noise"]),
        (
            {"method": {"kind": "tracerl", "copies": 2}},
            ["rl.short.method.copies: unknown key; known here: kind"],
        ),
        (
            {"method": {"kind": "gdpo", "copies": 1, "nodes": 3}},
            ["method 'gdpo' has ratio sequence, not 'token'"],
        ),
        (
            {"method": {"kind": "random", "copies": 1, "noise": [0.9, 0.1]}},
            ["rl.short.method: ", "noise must be a range inside [0, 1]"],
        ),
        (
            {"method": {"kind": "mask_aware", **METHOD_VALUES["mask_aware"]}},
            ["order.kind to 'plackett_luce'"],
        ),
        ({"method": {"kind": "ppo"}}, ["rl.short.method", "ppo", "tracerl"]),
        ({"method": {}}, ["rl.short.method", "kind"]),
        ({"kl_to": "synced"}, ["sync_every belongs to kl_to 'synced'"]),
        ({"sync_every": 8}, ["sync_every belongs to kl_to 'synced'"]),
        ({"advantages": "gae"}, ["a value model belongs to advantages 'gae'"]),
        (
            {
                "method": {"kind": "espo", "copies": 1, "noise": [0.0, 1.0]},
                "ratio": "sequence",
            },
            ["kl 'k3' is the exponential of a whole response's"],
        ),
        (
            {"method": {"kind": "wd1", "prompt_masking": 0.1}, "ratio": "none"},
            ["set kl to 'k2', or kl_weight to 0.0"],
        ),
        ({"ratio": "response"}, ["rl.short.ratio"]),
        ({"ratio": "sequence"}, ["rl.short", "set reduction to 'response'"]),
        ({"num_pad": -1}, ["rl.short.num_pad"]),
    ],
)
def test_a_round_has_what_its_method_needs_and_nothing_else(changes, parts):
    text = error_of(with_method(**changes))
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    ("phases", "parts"),
    [
        ([], ["rl.short.phases"]),
        (
            [{"name": "a", "iteration": 3}],
            ["rl.short.phases.0.iteration: unknown key; did you mean 'iterations'?"],
        ),
        ([{"name": "a", "iterations": 0}], ["rl.short.phases.0.iterations"]),
        ([{"name": "a/b"}], ["rl.short.phases.0.name"]),
        (
            [{"name": "a", "until": {"accuracy": 1.5, "over": 1}}],
            ["rl.short.phases.0.until.accuracy"],
        ),
        ([{"name": "a", "until": {"accuracy": 0.5}}], ["rl.short.phases.0.until.over"]),
        ([{"name": "a", "iterations": 1}, {"name": "a"}], ["two phases have one name: a, a"]),
        ([{"name": "a"}, {"name": "b"}], ["phase 'b' never begins"]),
        (
            [{"name": "a", "iterations": 40}, {"name": "b"}],
            ["phase 'b' never begins", "all 40 iterations"],
        ),
        (
            [{"name": "a", "sampler": {"block_sise": 8}}],
            ["rl.short.phases.0.sampler.block_sise", "did you mean 'block_size'"],
        ),
        (
            [{"name": "a", "sampler": {"block_size": 8}}],
            ["phase 'a' does not fit the round", "train_block_size 4 is not a multiple"],
        ),
        (
            [{"name": "a", "groups": 100}],
            ["phase 'a' does not fit the round", "min_groups <= groups <= max_sampled_groups"],
        ),
        ([{"name": "a", "tasks": {"nothing": 1.0}}], ["rl.short.phases: no task set 'nothing'"]),
    ],
)
def test_phases_fit_their_round(phases, parts):
    text = error_of(with_method(phases=phases))
    assert all(part in text for part in parts), text


def test_a_phase_may_begin_as_soon_as_a_bar_before_it_can_be_met():
    bar = {"accuracy": 0.5, "over": 3}
    for first in ({"name": "a", "iterations": 50, "until": bar}, {"name": "a", "until": bar}):
        assert (
            len(
                parse_params(with_method(phases=[first, {"name": "b"}]), "")
                .rl["short"]
                .phase_rounds
            )
            == 2
        )


def test_a_phase_changes_what_it_names_and_nothing_else():
    wide, small = ({"block_size": size, "steps_per_block": size} for size in (8, 4))
    settings = round_of(
        "tracerl",
        wide,
        train_block_size=8,
        phases=[{"name": "small", "iterations": 6, "sampler": small}, {"name": "wide"}],
    )
    tree = settings.model_dump()
    whole = tree | {"phases": None}
    assert [part.model_dump() for part in settings.phase_rounds] == [
        whole | {"sampler": tree["sampler"] | small},
        whole,
    ]


def test_every_method_parses_with_its_own_keys():
    for method in METHOD_VALUES:
        assert round_of(method).method.kind == method
        assert round_of(method, kl="k3", kl_weight=0.0).kl == "k3"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("compute.device", "tpu", "compute.device"),
        ("compute.attention", "fast", "compute.attention"),
        ("base.token_ids.end", [], "base.token_ids.end"),
        ("base.token_ids.mask", -1, "base.token_ids.mask"),
        (
            "sft.short.lora",
            {"rank": 0, "alpha": 1.0, "dropout": 0.0, "targets": ["q_proj"]},
            "sft.short.lora.rank",
        ),
        (
            "rl.short.lora",
            {"rank": 2, "alpha": 1.0, "dropout": 0.0, "targets": ["query"]},
            "rl.short.lora.targets",
        ),
        (
            "rl.short.lora",
            {"rank": 2, "alpha": 1.0, "targets": ["q_proj"]},
            "rl.short.lora.dropout",
        ),
        ("rl.short.held_out.tasks", ["nothing"], "rl.short.held_out: no task set 'nothing'"),
        ("rl.short.held_out.tasks", [], "rl.short.held_out.tasks"),
        (
            "launch",
            {"ranks": 2, "hosts": [], "port": 29400, "zero": 0, "offload": True},
            "offload needs zero",
        ),
        ("launch.ranks", 0, "launch.ranks"),
        ("launch.hosts", ["-oProxyCommand=x", "second"], "launch.hosts.0"),
        ("launch.zero", 4, "launch.zero"),
    ],
)
def test_where_and_what_models_are_is_checked(path, value, told):
    assert told in error_of(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("rl.short.reward", {"corect": 1.0}, "rl.short.reward"),
        ("rl.short.reward", {}, "rl.short.reward"),
        ("verification.sandbox", "docker", "verification.sandbox"),
        ("verification.math_cpu_seconds", 0.0, "verification.math_cpu_seconds"),
        ("tasks.sets.sums-long", {"source": "gym", "num_train": 1, "num_test": 1}, "task"),
        (
            "tasks.sets.sums-long",
            {
                "source": "sums",
                "difficulty": [2, 3],
                "options": {"a": 1},
                "num_train": 1,
                "num_test": 1,
            },
            "options",
        ),
        (
            "tasks.sets.sums-long",
            {"source": "countdown", "difficulty": [3, 5], "num_train": 1, "num_test": 1},
            "difficulty",
        ),
        (
            "tasks.sets.sums-long",
            {"source": "sudoku", "difficulty": [1, 13], "num_train": 1, "num_test": 1},
            "difficulty",
        ),
    ],
)
def test_rewards_judges_and_puzzles_are_checked(path, value, named):
    assert named in error_of(changed(path, value))


# Judges

LOCAL: dict[str, Any] = {
    "kind": "model",
    "path": "data/raw/judge",
    "max_rows": 8,
    "max_prompt_tokens": 4096,
    "min_mass": 0.2,
    "instructions": "",
}
PROCESS: dict[str, Any] = {"judge": "steps", "weight": 0.5, "separators": [";"], "max_chunks": 32}


def with_judges(
    process: dict[str, Any] | None = None, judge: str | None = None, **judges: Any
) -> dict[str, Any]:
    data = copy.deepcopy(DATA)
    data["verification"].update(
        judge=judge, judges={"steps": {"kind": "steps"}, "server": SERVER, "local": LOCAL, **judges}
    )
    if process is not None:
        data["rl"]["short"]["process"] = process
    return data


def test_judges_and_process_rewards_are_accepted():
    params = parse_params(with_judges(PROCESS, "server"), "")
    server = params.verification.judges["server"]
    assert isinstance(server, ServerJudge)
    assert server.concurrency == 8
    assert params.rl["short"].process is not None
    assert params.rl["short"].process.separators == [";"]
    assert (
        parse_params(
            with_judges({**PROCESS, "judge": "local", "separators": None, "chunk_tokens": 64}), ""
        )
        .rl["short"]
        .process
        is not None
    )


@pytest.mark.parametrize(
    ("process", "told"),
    [
        ({"judge": "gpt"}, ["rl.short.process.judge", "no judge 'gpt'", "local, server, steps"]),
        ({"chunk_tokens": 4}, ["rl.short.process", "not both"]),
        ({"separators": None}, ["rl.short.process", "separators or chunk_tokens"]),
        (
            {"separators": None, "chunk_tokens": 4},
            ["rl.short.process", "kind 'steps' needs separators"],
        ),
        ({"separators": [""]}, ["rl.short.process.separators"]),
        ({"weight": 0.0}, ["rl.short.process.weight"]),
        ({"wieght": 0.5}, ["rl.short.process.wieght", "did you mean 'weight'"]),
    ],
    ids=str,
)
def test_process_rewards_that_do_not_fit_are_named(process, told):
    text = error_of(with_judges({**PROCESS, **process}))
    assert all(part in text for part in told), text


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        (
            {**SERVER, "path": "a"},
            ["verification.judges.x.path: unknown key"],
        ),
        ({**SERVER, "url": "localhost"}, ["verification.judges.x.url"]),
        ({**SERVER, "url": "https://user:secret@host/v1"}, ["verification.judges.x.url"]),
        ({**SERVER, "url": "https://host/v1?key=secret"}, ["verification.judges.x.url"]),
        (
            {key: value for key, value in SERVER.items() if key != "retries"},
            ["verification.judges.x.retries: Field required"],
        ),
        (
            {key: value for key, value in SERVER.items() if key != "temperature"},
            ["verification.judges.x.temperature: Field required"],
        ),
        ({**LOCAL, "path": None}, ["verification.judges.x.path"]),
        ({**SERVER, "retrys": 3}, ["verification.judges.x.retrys", "did you mean 'retries'"]),
        ({"kind": "oracle"}, ["verification.judges.x", "oracle", "steps"]),
    ],
)
def test_judges_that_do_not_fit_are_named(judge, told):
    text = error_of(with_judges(x=judge))
    assert all(part in text for part in told), text
    assert "no judge 'gpt'" in error_of(with_judges(judge="gpt"))


def test_what_a_judge_decides_needs_one():
    open_set = {"source": "open", "path": "open.jsonl", "num_train": 4, "num_test": 4}
    for judge in (None, "server"):
        data = with_judges(judge=judge)
        data["tasks"]["sets"]["essays"] = open_set
        data["rl"]["short"]["tasks"] = {"essays": 1}
        other = with_judges(judge=judge)
        other["rl"]["short"]["reward"] = {"correct": 1.0, "judge": 0.5}
        for asked in (data, other):
            if judge is None:
                assert "name one in verification.judge" in error_of(asked)
            else:
                parse_params(asked, "")
    data = with_judges({**PROCESS, "judge": "steps"}, judge="server")
    data["tasks"]["sets"]["essays"] = open_set
    data["rl"]["short"]["tasks"] = {"essays": 1, "sums-short": 1}
    assert "essays" in error_of(data)
    data["rl"]["short"].pop("process")
    data["verification"]["judge"] = "steps"
    assert "has no rule for essays" in error_of(data)
    data = with_judges()
    data["tasks"]["sets"]["essays"] = open_set
    data["sft"]["short"].update(
        data="tasks", objective=DATA["sft"]["long"]["objective"], tasks={"essays": 1}
    )
    parse_params(data, "")  # training on solutions asks for no response
    assert "tasks.sets.essays.path" in error_of(
        changed("tasks.sets.essays", {**open_set, "path": None})
    )


def test_a_judge_of_steps_is_asked_about_what_phases_draw():
    data = with_judges(PROCESS)
    data["tasks"]["sets"]["mine"] = {
        "source": "file",
        "path": "mine.jsonl",
        "num_train": 4,
        "num_test": 4,
    }
    data["rl"]["short"]["phases"] = [{"name": "mine", "tasks": {"mine": 1}}]
    assert "mine" in error_of(data)
    data["rl"]["short"].update(
        tasks={"mine": 1}, phases=[{"name": "sums", "tasks": {"sums-short": 1}}]
    )
    parse_params(data, "")  # held-out problems are asked of no judge of steps


@pytest.mark.parametrize("method", ["wd1", "spg", "gdpo", "espo"])
def test_methods_with_one_likelihood_per_response_have_no_process_rewards(method):
    with pytest.raises(ValueError, match="process rewards are per token"):
        round_of(method, process=PROCESS)
