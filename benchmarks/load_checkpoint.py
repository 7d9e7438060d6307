"""Peak memory of loading a sharded checkpoint at the true shapes of SDAR-4B or LLaDA2-mini, as a
multiple of its size.

Random bf16 weights (a million numbers over and over) are written to a temporary directory shard by
shard, then loaded by a fresh process.

Examples: python -m benchmarks.load_checkpoint --layers 36
          python -m benchmarks.load_checkpoint --shape llada2-mini --layers 2   (256 experts)
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from tracerl.models.checkpoint import load_checkpoint
from tracerl.models.policy import Policy
from tracerl.models.published_config import architecture_of, read_config
from tracerl.models.tokenizer import character_tokenizer
from tracerl.models.weights import published_parts

SDAR_4B = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "sdar",
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
LLADA2_MINI = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "dtype": "bfloat16",
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rope_theta": 600000.0,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "first_k_dense_replace": 1,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "num_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}
SHAPES = {"sdar-4b": SDAR_4B, "llada2-mini": LLADA2_MINI}
SHARD_BYTES = 1_000_000_000


def write_checkpoint(directory: Path, model_shape: str, layers: int) -> int:
    """Writes the directory and returns the bytes of its weights."""
    config = {
        **SHAPES[model_shape],
        "num_hidden_layers": layers,
        "mask_token_id": character_tokenizer().mask_id,
    }
    (directory / "config.json").write_text(json.dumps(config))
    character_tokenizer().save(directory)
    with torch.device("meta"):
        model = Policy(architecture_of(read_config(directory), directory))
    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).mul_(0.02).bfloat16()
    pending: dict[str, torch.Tensor] = {}
    weight_map: dict[str, str] = {}
    size = total = 0
    shapes: list[tuple[str, torch.Size]] = []
    for ours, tensor in model.state_dict().items():
        parts = published_parts(ours, tensor, model.family)
        shapes += [(published, part.shape) for published, part in parts]
    for i, (name, shape) in enumerate(shapes):
        pending[name] = (
            some.repeat(-(-shape.numel() // len(some)))[: shape.numel()].reshape(shape).clone()
        )
        size += pending[name].numel() * 2
        if size >= SHARD_BYTES or i == len(shapes) - 1:
            file = f"model-{len(set(weight_map.values())) + 1:05d}.safetensors"
            save_file(pending, directory / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(pending, file)
            total, size, pending = total + size, 0, {}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def resident_bytes(kind: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process. getrusage's peak would be that of the parent,
    which wrote the weights."""
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind)
    ]
    return int(line.split()[1]) * 1024


def load(directory: Path) -> None:
    """Loads and prints what that added to the memory in use, at its peak, and the seconds it
    took."""
    before, start = resident_bytes("VmRSS"), time.perf_counter()
    model, _ = load_checkpoint(directory)
    seconds = time.perf_counter() - start
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    print(json.dumps({"bytes": resident_bytes("VmHWM") - before, "seconds": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--layers", type=int, default=36, help="fewer where memory or disk is short"
    )
    parser.add_argument("--shape", choices=SHAPES, default="sdar-4b")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load)
        return
    with tempfile.TemporaryDirectory() as name:
        size = write_checkpoint(Path(name), arguments.shape, arguments.layers)
        command = [sys.executable, "-m", "benchmarks.load_checkpoint", "--load", name]
        result = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
    ratio = result["bytes"] / size
    peak, seconds = result["bytes"] / 1e9, result["seconds"]
    print(
        f"{arguments.layers} layers, {size / 1e9:.2f} GB: peak {peak:.2f} GB in {seconds:.0f} s, "
        f"{ratio:.3f} x its size"
    )
    if ratio > 1.2:
        sys.exit("more than 1.2 x")


if __name__ == "__main__":
    main()
