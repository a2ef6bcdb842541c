"""``python -m lethe.evidence.honest``: measure every reference again and rewrite the table of traits."""

from __future__ import annotations

import argparse
from pathlib import Path

from lethe.audit import house
from lethe.audit.corpora import CorpusError
from lethe.evidence.honest import corpus


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.honest", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=None, help=f"default: {house.FOLDER}")
    parser.add_argument("--table", type=Path, default=None, help=f"default: {corpus.TABLE}")
    arguments = parser.parse_args()
    import torch

    from lethe.evidence.honest.measure import traits_of

    measured = {}
    try:
        for problem in corpus.problems(arguments.folder or house.default_folder()):
            traits = traits_of(problem)
            measured[problem.name] = (problem.sha256, traits)
            print(f"{problem.name}: {len(traits.left_out)} rewritings left out", flush=True)
    except CorpusError as e:
        parser.error(str(e))
    file = arguments.table or corpus.table_file()
    corpus.write_table(measured, torch.__version__, file)
    print(f"{file}: {len(measured)} references")


if __name__ == "__main__":
    main()
