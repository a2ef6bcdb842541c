"""Your own kernels: a folder of files whose names say which problem each one solves.

    lethe audit --corpus directory --path runs/mine --problems KernelBench

A kernel file belongs to a problem in one of three ways, tried in this order:

* KernelBench's own run layout, ``level_1_problem_19_sample_0_kernel.py``;
* ``<problem>__<anything>.py`` where ``<problem>`` is a reference's file name without ``.py``;
* the longest reference name that the file's name begins with, followed by a
  character that is neither letter nor digit (``19_ReLU-attempt3.py``).

References come from `problems`: a KernelBench checkout (of any revision: use the
one that your kernels were written for) or a flat folder of reference files.
Without `problems`, a folder ``problems`` inside `path` is used.

* Licence: yours. * Accepted: not known (None). * Row id: the file's path under `path`, without ``.py``.
* Left out: files that match no reference or that nobody may read, counted in the notes. A file that is no
  text at all stays in as a row without source, which is judged malformed.
"""

from __future__ import annotations

import re
from pathlib import Path

from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.kernelbench import KernelBench, family_of
from lethe.audit.textio import source_of
from lethe.verifier import formats
from lethe.verifier.formats import FormatError, read_source
from lethe.verifier.problem import Candidate, Problem

KERNELBENCH_RUN = re.compile(r"level_(\d+)_problem_(\d+)_sample_\d+.*")


def load(
    path: str | Path,
    problems: str | Path | None = None,
    licence: str = "unspecified",
    entry: str = "ModelNew",
) -> ListedCorpus:
    """Kernels under `path` (searched recursively) with references from `problems`.

    Raises CorpusError where a folder is missing or no file matches any reference.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CorpusError(f"corpus directory: no folder {folder}; set path to the folder with your kernels")
    references = References(Path(problems) if problems is not None else folder / "problems")
    rows: list[Row] = []
    unmatched: list[str] = []
    closed: list[str] = []
    for file in sorted(folder.rglob("*.py")):
        if references.folder in (file.parent, *file.parents):
            continue
        problem = references.of(file.stem)
        row_id = file.relative_to(folder).with_suffix("").as_posix()
        if problem is None:
            unmatched.append(row_id)
            continue
        try:
            file.read_bytes()
        except OSError as e:
            closed.append(f"{row_id}: {e.strerror}")
            continue
        try:
            source, extra = read_source(file)[0], {}
        except FormatError as e:
            source, extra = "", {"unreadable": str(e)}
        language = language_of(source)
        rows.append(
            Row(
                id=row_id,
                corpus="directory",
                problem=problem,
                candidate=Candidate(
                    name=row_id,
                    source=source,
                    language=language,
                    entry=entry,
                    kind=kind_of(source, entry),
                    path=f"{row_id}.py",
                ),
                family=family_of(problem.name),
                language=language,
                accepted=None,
                licence=licence,
                extra=extra,
            )
        )
    if not rows and closed:
        raise CorpusError(f"corpus directory: no kernel under {folder} can be read ({closed[0]})")
    if not rows:
        raise CorpusError(
            f"corpus directory: no kernel under {folder} matches a reference under {references.folder}; "
            "name kernels <problem>__<anything>.py after their reference <problem>.py"
        )
    notes = []
    if unmatched:
        shown = ", ".join(unmatched[:3]) + (", ..." if len(unmatched) > 3 else "")
        notes.append(f"{len(unmatched)} files that match no reference are left out ({shown})")
    if closed:
        shown = ", ".join(closed[:3]) + (", ..." if len(closed) > 3 else "")
        notes.append(f"{len(closed)} files that cannot be read are left out ({shown})")
    return ListedCorpus("directory", rows, notes)


def kind_of(source: str, entry: str) -> str:
    """``"function"`` where the text defines `entry` as one, as in ``lethe verify``, else ``"module"``."""
    try:
        defined = formats.definitions(formats.parse(source))
    except FormatError:
        return "module"
    return "function" if defined.get(entry) == "function" else "module"


def language_of(source: str) -> str:
    """``"triton"``, ``"cuda"``, ``"cpp"`` or ``"python"``, judged by the source's text alone."""
    try:
        found = formats.language(formats.parse(source))
    except FormatError:
        return "python"
    if found == "triton":
        return found
    if "__global__" in source:
        return "cuda"
    return "cpp" if found == "cpp" or 'extern "C"' in source else "python"


class References:
    """Reference files by name, from a flat folder or a KernelBench checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise CorpusError(
                f"corpus directory: no folder {folder} with references; give one with --problems "
                "(a KernelBench checkout, or a folder of reference files)"
            )
        self.bench: KernelBench | None = None
        try:
            self.bench = KernelBench(folder, any_revision=True)
        except CorpusError:
            files = sorted(folder.glob("*.py"))
            self._problems = {f.stem: Problem(f.stem, source_of(f, "directory"), path=f.name) for f in files}
        else:
            names = [
                f"level{f.parent.name[5:]}/{f.name}" for f in sorted(self.bench.root.glob("level[123]/*.py"))
            ]
            found: dict[str, list[Problem]] = {}
            for name in names:
                found.setdefault(Path(name).stem, []).append(self.bench.problem(name))
            self._problems = {stem: group[0] for stem, group in found.items() if len(group) == 1}
        if not self._problems:
            raise CorpusError(f"corpus directory: no reference (*.py) under {folder}")

    def of(self, stem: str) -> Problem | None:
        """The reference that a kernel file's name points to, or None."""
        run = KERNELBENCH_RUN.fullmatch(stem)
        if run and self.bench is not None:
            return self.bench.numbered(int(run[1]), int(run[2]))
        exact = self._problems.get(stem.split("__")[0])
        if exact is not None:
            return exact
        fits = [p for p in self._problems if stem == p or (stem.startswith(p) and not stem[len(p)].isalnum())]
        return self._problems[max(fits, key=len)] if fits else None
