"""The ranks of a stage: which process this is, its share of the work, and collectives.

With one process no launcher and no process group are needed, and every function returns what it was
passed: the same code runs on one process and on many. Prompts are split into contiguous slices,
micro-batches are dealt out one by one. Denominators, filters and draws are computed over all of
them before that, so that a result depends on the number of ranks by rounding only. All ranks use
the same workspace (on several machines, on a file system they share) and hold every response; the
first rank writes and publishes.

Ranks exchange their own Python objects over the process group of the launcher that started them.
"""

import atexit
import ctypes
import itertools
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # stages without tensors do not import torch
    import torch

Item = TypeVar("Item")

_PR_SET_PDEATHSIG = 1
_TIMEOUT = timedelta(hours=6)  # a rank may wait this long for one with longer responses

# State of the process, set once by `join`; the process group of torch is as global.
_rank = 0
_size = 1


def is_launched() -> bool:
    """Whether a launcher (torchrun, DeepSpeed's) started this process."""
    return all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"))


def join() -> None:
    """Joins the process group that the launcher announced; does nothing without a launcher.

    A rank is sent SIGTERM when its launcher ends: launchers start ranks in sessions of their own,
    which the signals of a terminal do not reach.
    """
    global _rank, _size
    import torch
    import torch.distributed as dist

    if not is_launched() or dist.is_initialized():
        return
    if not torch.cuda.is_available():
        # DeepSpeed would look for other accelerators, and warn that it found none.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    _rank = dist.get_rank()
    _size = dist.get_world_size()
    atexit.register(dist.destroy_process_group)  # must run before interpreter shutdown


def rank() -> int:
    """Number of this process, from 0."""
    return _rank


def size() -> int:
    """How many processes there are."""
    return _size


def is_first() -> bool:
    """Whether this process is the one that writes and publishes."""
    return rank() == 0


def rank_slice(num_items: int) -> slice:
    """This rank's contiguous slice of `num_items` items.

    Lengths differ by at most one; some slices are empty if there are more ranks than items.
    """
    return slice(num_items * rank() // size(), num_items * (rank() + 1) // size())


def shard_padded(items: Sequence[Item]) -> list[tuple[Item, bool]]:
    """`(item, is_real)` pairs of this rank, padded with repeats so that every rank runs the same
    number of passes (sharded training needs that); a repeat must not count.

    Raises ValueError if there are no items.
    """
    if not items:
        raise ValueError("there are no items to shard")
    length = -(-len(items) // size())
    shard = [(items[i], True) for i in range(rank(), len(items), size())]
    return shard + [(items[0], False)] * (length - len(shard))


def all_gather(items: list[Item]) -> list[Item]:
    """The lists of all ranks, concatenated in the order of ranks, on every rank."""
    if size() == 1:
        return items
    import torch.distributed as dist

    parts: list[Any] = [None] * size()
    dist.all_gather_object(parts, items)
    return list(itertools.chain.from_iterable(parts))


def all_reduce_sum(values: Mapping[str, float]) -> dict[str, float]:
    """Sums over ranks, in float64, by key; every rank must pass the same keys in the same order."""
    if size() == 1:
        return dict(values)
    import torch
    import torch.distributed as dist

    total = torch.tensor(list(values.values()), dtype=torch.float64)
    dist.all_reduce(total)
    return dict(zip(values, total.tolist(), strict=True))


def all_reduce_sum_(tensors: "Sequence[torch.Tensor]") -> None:
    """Replaces tensors, all of one dtype and device, by their sums over ranks."""
    if size() == 1 or not tensors:
        return
    import torch
    import torch.distributed as dist

    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def is_set_on_any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank."""
    return all_reduce_sum({"flag": float(flag)})["flag"] > 0


def barrier() -> None:
    """Returns when every rank has called it."""
    if size() > 1:
        import torch.distributed as dist

        dist.barrier()


def is_peer_failure(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank died; that rank's log has the cause."""
    return size() > 1 and (type(error).__name__.startswith("Dist") or "gloo" in str(error))
