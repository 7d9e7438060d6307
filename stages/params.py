"""Writes what each stage reads of params.yaml, resolved and checked: data/params/<stage>.yaml.

A stage depends on its file, so that a changed number reruns the stages that read it and no other,
and an edit of params.yaml during a run waits for the next one.

Example: python -m stages.params
"""

from stages.runtime import entry, paths
from stages.runtime.params import write_stage_params


def main() -> None:
    write_stage_params(paths.ROOT / "params.yaml", paths.PARAMS)


if __name__ == "__main__":
    entry.run(main, __doc__)
