"""The trace viewer with long responses: seconds that headless Chromium works to play them and to
choose others.

    python -m benchmarks.viewer
    python -m benchmarks.viewer --responses 300 --tokens 4096

A step may take two frames of a display (33 ms), choosing another response half a second. The
seconds are processor seconds of the page's main thread, painting included, whatever else the
machine does.
"""

import argparse
import tempfile
from pathlib import Path

from tests.chromium import browser
from tests.reporting.synthetic_run import long_responses, make_rollouts, make_tasks
from tracerl.models.tokenizer import character_tokenizer
from tracerl.reporting.trace_viewer import render_viewer, select_responses
from tracerl.store.catalog import connect
from tracerl.store.files import rollout_table, write_rollouts, write_tasks

STEPS, CHOICES = 100, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--responses", type=int, default=300, help="how many responses the page holds (300)"
    )
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of each (4096)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder / "data" / "tasks" / "mixed.parquet", make_tasks())
        write_rollouts(
            folder / "data" / "rollouts" / "rl@short" / "iter-00001.parquet",
            rollout_table(make_rollouts("rl@short", 1)),
        )
        [response] = select_responses(connect(folder), "true", None, 1)
        path = folder / "long.html"
        path.write_text(
            render_viewer(
                long_responses(response, arguments.responses, arguments.tokens),
                character_tokenizer(),
                "long",
            )
        )
        with browser(folder) as page:
            page.open(path.as_uri())
            page.press("Home")
            step = page.seconds_of(f"for (let i = 1; i <= {STEPS}; i++) go(i)") / STEPS
            choice = page.seconds_of(f"for (let i = 1; i <= {CHOICES}; i++) select(i)") / CHOICES
        print(
            f"{arguments.responses} responses of {arguments.tokens} tokens, "
            f"{path.stat().st_size / 1e6:.1f} MB"
        )
        print(
            f"a step {1000 * step:.2f} ms (limit 33), choosing a response {choice:.3f} s (limit "
            "0.5)"
        )


if __name__ == "__main__":
    main()
