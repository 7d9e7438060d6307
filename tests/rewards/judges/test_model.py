"""A local model as a judge: the probability of yes against no, the same whatever the batch, and
undecided where it says neither."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.tiny import sharp_model
from tracerl.errors import CheckpointError, NonFiniteError
from tracerl.models.baselines import load_baseline
from tracerl.models.checkpoint import save_checkpoint
from tracerl.models.tokenizer import character_tokenizer
from tracerl.rewards.judges.model import _CLOSING, answer_tokens, harmless, model_judge
from tracerl.rewards.judges.questions import Question, prompt_of
from tracerl.settings.models import Compute
from tracerl.settings.rewards import ModelJudge
from tracerl.types import Task

TOKENIZER = character_tokenizer()
COMPUTE = Compute(
    device="cpu", dtype="float64", attention="auto", checkpoint_layers=False, vectors="avx2"
)
TASK = Task(
    task_id="t",
    task_set="t",
    kind="sums",
    split="train",
    difficulty=3,
    prompt="4+7+5=",
    answer="16",
    solution="",
)
QUESTIONS = [Question(task=TASK, chunks=("11;", "16;", "#16"), index=i) for i in range(3)] + [
    Question(task=TASK, chunks=("no idea " * n,)) for n in (1, 9)
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    config = Qwen2Config(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.2,
    )
    torch.manual_seed(1)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    TOKENIZER.save(folder)
    told = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": told["eos_token"]}))
    return folder


def settings(**changes) -> ModelJudge:
    return ModelJudge(
        **{
            "kind": "model",
            "path": "x",
            "max_rows": 2,
            "max_prompt_tokens": 2000,
            "min_mass": 0.0,
            "instructions": "",
            **changes,
        }
    )


@torch.no_grad()
def test_the_score_is_how_much_likelier_yes_is_than_no(directory):
    model, tokenizer = load_baseline(directory, COMPUTE)
    yes, no = answer_tokens(tokenizer, directory)
    assert [tokenizer.decode(ids) for ids in (yes, no)] == ["yY", "nN"]
    wanted = []
    for question in QUESTIONS:
        logits = model(torch.tensor([tokenizer.encode(prompt_of(question, "", _CLOSING))])).logits[
            0, -1
        ]
        p_yes, p_no = (logits[tokens].exp().sum() for tokens in (yes, no))
        wanted.append(float((p_yes - p_no) / (p_yes + p_no)))
    assert len({round(score, 6) for score in wanted}) > 1
    for rows in (1, 2, 5):
        scores = [
            answer.score
            for answer in model_judge(settings(max_rows=rows), directory, COMPUTE)(QUESTIONS)
        ]
        assert scores == pytest.approx(wanted, abs=1e-9)


def test_a_response_that_spells_a_control_token_does_not_write_one():
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("<|im_end> x")}, merges=[]))
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    control = tokenizer.token_to_id("<|im_end|>")
    text = "x<|im_end|>x"
    assert control in tokenizer.encode(text).ids
    assert control not in tokenizer.encode(harmless(text, ["<|im_end|>"])).ids
    assert harmless("x < y | z", ["<|im_end|>", "<"]) == "x < y | z"


def changed_model(directory: Path, folder: Path, head: torch.Tensor) -> Path:
    """The judge with another head, and as many ids as that has rows."""
    model = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    model.resize_token_embeddings(len(head), mean_resizing=False)
    model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((directory / name).read_bytes())
    return folder


def test_ids_without_a_token_take_no_probability_from_yes_and_no(directory, tmp_path):
    head = Qwen2ForCausalLM.from_pretrained(directory).lm_head.weight.detach()
    beyond = torch.cat([head, 50 * head])  # some of them are certain
    wide = changed_model(directory, tmp_path, beyond)
    answers = model_judge(settings(min_mass=1e-6), wide, COMPUTE)(QUESTIONS)
    wanted = model_judge(settings(min_mass=1e-6), directory, COMPUTE)(QUESTIONS)
    scores = [answer.score for answer in wanted]
    assert None not in scores
    assert [answer.score for answer in answers] == pytest.approx(scores, abs=1e-6)


def test_logits_that_are_not_finite_end_a_judge_with_an_error(directory, tmp_path):
    head = Qwen2ForCausalLM.from_pretrained(directory).lm_head.weight.detach()
    large = (8 * (1e38 * head)).clamp(-3e38, 3e38)  # finite; sums of 32 of them are not
    broken = changed_model(directory, tmp_path, large)
    compute = COMPUTE.model_copy(update={"dtype": "float32"})
    with pytest.raises(NonFiniteError, match="a judge's questions, row 0"):
        model_judge(settings(), broken, compute)(QUESTIONS)


def test_what_it_cannot_decide_is_undecided(directory):
    judge = model_judge(settings(min_mass=1.0), directory, COMPUTE)
    assert {answer.score for answer in judge(QUESTIONS)} == {None}
    assert "yes and no have probability" in judge(QUESTIONS)[0].reason
    lengths = [len(TOKENIZER.encode(prompt_of(question, "", _CLOSING))) for question in QUESTIONS]
    short = model_judge(settings(max_prompt_tokens=max(lengths) - 1), directory, COMPUTE)
    assert [answer.score is None for answer in short(QUESTIONS)] == [
        length == max(lengths) for length in lengths
    ]
    foreign = Question(task=TASK, chunks=("été",))
    assert [
        answer.score is None
        for answer in model_judge(settings(), directory, COMPUTE)([foreign, *QUESTIONS])
    ] == [True] + [False] * 5
    assert model_judge(settings(), directory, COMPUTE)([]) == []


def test_a_checkpoint_that_is_no_judge_is_named(tmp_path):
    model = sharp_model("sdar", vocab_size=TOKENIZER.vocab_size)
    save_checkpoint(model, TOKENIZER, tmp_path)
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="not an autoregressive one"):
            model_judge(settings(), folder, COMPUTE)
