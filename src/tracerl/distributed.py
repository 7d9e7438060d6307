"""The processes that run a stage together: which of them this is, its share of the work, and what
all of them must know.

A world of one needs no launcher and no process group, and every function here then gives back what
it was given: there is one code for one process and for many. Prompts are shared out as contiguous
slices and micro-batches one by one; denominators, filters and draws are taken over the whole before
that, so that a result depends on the number of ranks by rounding only. Every rank sees the same
workspace (on several machines, a file system they share) and knows every response; the first one
writes and publishes.

What ranks send each other are their own records, over the process group of the launcher that
started them.
"""

import atexit
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # a stage without tensors does not wait for torch
    import torch

Item = TypeVar("Item")

_PR_SET_PDEATHSIG = 1
_PATIENCE = timedelta(hours=6)  # of a rank that waits for one with longer responses

_rank, _size = 0, 1


def launched() -> bool:
    """Whether a launcher (torchrun, DeepSpeed's) started this process."""
    return all(name in os.environ for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"))


def join() -> None:
    """Makes this process a rank of the world its launcher announced; nothing to do without one.

    A rank ends with its launcher, however that ends: launchers start ranks in sessions of their
    own, where no terminal reaches them.
    """
    global _rank, _size
    import torch
    import torch.distributed as dist

    if not launched() or dist.is_initialized():
        return
    if not torch.cuda.is_available():
        os.environ.setdefault(
            "DS_ACCELERATOR", "cpu"
        )  # DeepSpeed would look for others, and warn that it found none
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=_PATIENCE
    )
    _rank, _size = dist.get_rank(), dist.get_world_size()
    atexit.register(
        dist.destroy_process_group
    )  # before the interpreter takes its threads' ground away


def rank() -> int:
    """Number of this process, from 0."""
    return _rank


def size() -> int:
    """How many processes there are."""
    return _size


def is_first() -> bool:
    """Whether this process is the one that writes and publishes."""
    return rank() == 0


def own_slice(number: int) -> slice:
    """This rank's part of `number` things in a row. Parts differ by one at most; some are empty if
    there are more ranks than things."""
    return slice(number * rank() // size(), number * (rank() + 1) // size())


def share(items: Sequence[Item]) -> list[tuple[Item, bool]]:
    """This rank's items, as many on every rank, each with whether it counts: what evens out the
    number is run and counts for nothing.

    Sharded training needs as many passes on every rank. Raises ValueError if there is nothing to
    share out.
    """
    if not items:
        raise ValueError("nothing to share out")
    each = -(-len(items) // size())
    own = [items[i] for i in range(rank(), len(items), size())]
    return [(item, True) for item in own] + [(items[0], False)] * (each - len(own))


def gathered(own: list[Item]) -> list[Item]:
    """Every rank's list, one after the other in the order of ranks, on every rank."""
    if size() == 1:
        return own
    import torch.distributed as dist

    parts: list[Any] = [None] * size()
    dist.all_gather_object(parts, own)
    return [item for part in parts for item in part]


def summed(values: Mapping[str, float]) -> dict[str, float]:
    """Numbers added up over ranks, in float64."""
    if size() == 1:
        return dict(values)
    import torch
    import torch.distributed as dist

    total = torch.tensor(list(values.values()), dtype=torch.float64)
    dist.all_reduce(total)
    return dict(zip(values, total.tolist(), strict=True))


def add_up(tensors: "Sequence[torch.Tensor]") -> None:
    """Replaces tensors, of one dtype and device, by their sums over ranks."""
    if size() == 1 or not tensors:
        return
    import torch
    import torch.distributed as dist

    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, part in zip(
        tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True
    ):
        tensor.copy_(part.view_as(tensor))


def any_of(flag: bool) -> bool:
    """Whether the flag is set on any rank."""
    return summed({"flag": float(flag)})["flag"] > 0


def wait_for_all() -> None:
    """Returns when every rank has come here."""
    if size() > 1:
        import torch.distributed as dist

        dist.barrier()


def is_loss_of_others(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank is gone, which says nothing about why: that
    rank's own error does."""
    return size() > 1 and (type(error).__name__.startswith("Dist") or "gloo" in str(error))
