"""The beginning and the end of a stage's process: arguments, params, signals, and errors as
messages."""

import argparse
import errno
import sys
from collections.abc import Callable, Mapping

from stages.runtime import debug, paths
from stages.runtime.code import check_code
from stages.runtime.launch import become_launcher, needs_launcher
from stages.runtime.machine import pin_vectors
from stages.runtime.params import read_params
from stages.runtime.signals import install_handlers
from tracerl import distributed
from tracerl.errors import TracerlError
from tracerl.settings.params import Params


def start(stage: str, *, ranks: bool = False) -> Params:
    """The params of a stage that computes, with torch set to its threads and vector width.

    ranks: whether the stage's work is shared by several processes where the params say so
    (`launch`). This process then becomes their launcher, which runs the same command line once for
    each of them, or, where a launcher has started it, one of the ranks.
    """
    import torch  # a stage that computes nothing starts seconds sooner without it

    params = read_params(stage)
    check_code(stage.partition("@")[0])
    pin_vectors(params.compute.vectors)
    torch.set_num_threads(params.threads)
    if ranks and not distributed.is_launched() and needs_launcher(params.launch):
        become_launcher(params.launch)
    if ranks:
        distributed.join()
    return params


def run(main: Callable[..., None], description: str, *argument: str) -> None:
    """Runs a stage with its one positional argument, if it has one; an error of ours ends it with
    its message, not a traceback.

    The first SIGINT or SIGTERM lets it finish and save the unit of work it is in, the second ends
    it at once; both leave it resumable.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in argument:
        parser.add_argument(name)
    parser.add_argument(
        "--debug",
        action="store_true",
        help="tracebacks; goes on from what is saved, whatever code saved it; publishes nothing",
    )
    parser.add_argument(
        "--iterations",
        type=int,
        metavar="K",
        help="with --debug: stop after K iterations, steps or responses",
    )
    arguments = vars(parser.parse_args())
    debug.options.enabled = arguments.pop("debug")
    debug.options.max_units = arguments.pop("iterations")
    if debug.options.max_units is not None and not debug.options.enabled:
        parser.error("--iterations has an effect with --debug only")
    install_handlers()
    if debug.options.enabled:
        main(**arguments)
    else:
        _run_with_messages(main, arguments)


def _run_with_messages(main: Callable[..., None], arguments: Mapping[str, str]) -> None:
    """Runs a stage; what goes wrong ends the process with a message."""
    try:
        main(**arguments)
    except KeyboardInterrupt as stopped:
        sys.exit(
            f"stopped: {stopped}; the same command continues from what is saved"
            if distributed.is_first()
            else 1
        )
    except TracerlError as error:
        sys.exit(f"error: {error}")
    except RuntimeError as error:
        if not distributed.is_peer_failure(error):
            raise
        sys.exit(
            f"stopped: rank {distributed.rank()} lost the others ({str(error).splitlines()[0]})"
        )
    except OSError as error:
        message = _disk_message(error)
        if message is None:
            raise
        sys.exit(f"error: {message}")


def _disk_message(error: OSError) -> str | None:
    """What to say of a disk that takes no more files; None for any other error."""
    causes = _disk_errors(error)
    if not causes:
        return None
    number, name = causes[0]
    where = f"  where: {name or paths.DATA}"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full\n{where}\n  what to do: free space and run the same command again"
    return (
        f"this folder cannot be written\n{where}\n"
        "  what to do: make it writable and run the same command again"
    )


def _disk_errors(error: OSError) -> list[tuple[int, str]]:
    """(errno, file) of an error; of shutil.Error, which has no errno, those that it collected."""
    known = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
    if error.errno in known:
        return [(error.errno, str(error.filename or ""))]
    found = []
    for argument in error.args:
        entries = argument if isinstance(argument, list) else []
        for source, target, text in entries:
            for number in known:
                if f"[Errno {number}]" in str(text):
                    found.append((number, str(target or source)))
    return found
