"""The stages of the pipeline: `python -m stages.<kind> [<name>]`, as dvc.yaml starts them."""

import sys
from pathlib import Path

# The library beside these stages and no other: a clone, or a folder that `dvc exp run --temp` made,
# runs its own code, whichever copy pip has installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
