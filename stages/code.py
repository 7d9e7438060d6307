"""Lists the code of every stage, data/code/<kind>.txt: the files that it runs, with checksums.

A stage depends on its list, so that an edit reruns the stages whose code it is, and no other.

Example: python -m stages.code
"""

from stages.runtime import entry, paths
from stages.runtime.code import write_code_lists


def main() -> None:
    write_code_lists(paths.CODE)


if __name__ == "__main__":
    entry.run(main, __doc__)
