"""``python -m lethe.ptx`` is ``lethe ptx``, without the rest of lethe."""

import sys

from lethe.ptx.cli import main

if __name__ == "__main__":
    sys.exit(main(name="python -m lethe.ptx"))
