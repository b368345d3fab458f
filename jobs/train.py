"""`elastic-dgc train` as a script, for `ray job submit --working-dir . -- python jobs/train.py ...`.

Nothing needs to be installed: the package that lies beside this folder is used, by the workers too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)


def run() -> None:
    """Make the package beside this folder the one that is imported, here and in workers that Ray starts, and train."""
    sys.path.insert(0, ROOT)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != ROOT]
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *inherited])
    from elastic_dgc.cli.main import main

    main(["train", *sys.argv[1:]])


if __name__ == "__main__":
    run()
