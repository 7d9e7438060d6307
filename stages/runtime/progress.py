"""The progress bar of a stage."""

import sys
from collections.abc import Callable

from tqdm import tqdm

from stages.runtime import debug
from stages.runtime.signals import stop_requested
from tracerl import distributed

Observer = Callable[[str, int, int], None]

_observers: list[Observer] = []


def add_observer(observer: Observer) -> None:
    """Calls `observer(stage, done, total)` after every unit of work that a stage has saved."""
    _observers.append(observer)


def warn(stage: str, text: str) -> None:
    """Prints a warning; of several ranks the first one does."""
    if distributed.is_first():
        print(f"warning: {stage}: {text}", file=sys.stderr)


def warn_of_long_rows(stage: str, longest_row: int, micro_batch_tokens: int) -> None:
    """Says before a stage starts that single rows may exceed the limit of its micro-batches."""
    if longest_row > micro_batch_tokens:
        warn(
            stage,
            f"a row may hold {longest_row:,} tokens, more than micro_batch_tokens "
            f"{micro_batch_tokens:,}: such a row is a micro-batch of its own and needs more memory",
        )


def progress(stage: str, unit: str) -> Callable[[int, int, str], None]:
    """A progress bar with ETA, from now on: a live line on a terminal, a line every ten seconds
    elsewhere.

    To be called after the work that it shows is saved: it raises KeyboardInterrupt once a signal
    has asked the stage to end. Of several ranks the first one shows.
    """
    live = sys.stderr.isatty()
    bar = tqdm(
        desc=stage,
        unit=unit,
        mininterval=0.5 if live else 10,
        dynamic_ncols=live,
        disable=not distributed.is_first(),
    )

    num_units = 0

    def show(done: int, total: int, text: str = "") -> None:
        nonlocal num_units
        for observer in _observers:
            observer(stage, done, total)
        if bar.total is None:
            # A resumed stage starts where it was.
            bar.total = total
            bar.initial = done - 1
            bar.n = done - 1
        bar.set_postfix_str(text, refresh=False)
        bar.update(done - bar.n)
        if done >= total:
            bar.close()
        num_units += 1
        if num_units == debug.options.max_units:
            raise KeyboardInterrupt(f"{stage} after {num_units} {unit}s, as --iterations asks")
        if stop_requested():
            raise KeyboardInterrupt(f"{stage} after {unit} {done} of {total}")

    return show
