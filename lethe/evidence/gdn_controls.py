"""A positive control of the native recurrence: its seven members behind the same twelve gates as any corpus.

* Where: ``data/corpus/gdn_controls``: ``problem.py`` is the chunkwise WY form in plain torch, ``kernel.py``
  calls the operator; a row's texts begin with its member and how that member's gates come. Each row returns
  output, final states and every gradient, so that each gate judges the values of the backward kernels too;
  CMP-02 takes the gradients of the output itself.
* Sizes are the envelope of the kernels: 128 keys and 128 or 64 values a head, three chunks of 64, the last
  one cut short, from an initial state and with a gradient of the final one.
* Around the operator stands what a layer has there, the same torch on both sides: normalised keys and
  queries, sigmoids, and log decays above -5 (the bound that KDA's kernels set) of which most are mild.
* The kernels take bfloat16: the references round what they are given, and what each product takes, to it,
  but for what the kernels document as float16 (`lethe.kernels.gdn.precision`): keys, queries and both
  triangles, the causal one with its scale, as they are, so that what is below 2^-14 loses digits; states,
  their adjoints and what is added to them with one power of two for a sequence, or a chunk, as what comes
  back to a triangle, so that what lies 18 binades or more below the largest loses them. Sums and the
  diagonals of a chunk's triangles are float32. The bands follow from the references' own error; the kernels'
  pins are `gdn_gpu_checks`' business.
* The references are chunked, made of products alone, and hold the diagonals apart as the kernels do, so that
  EXC-01 charges no element on which the two readings of 0 times NaN disagree (see `ssd_controls`).
* On a machine without the GPU the same text takes ``backend="torch"``, and a smaller head (`REDUCED`): eleven
  gates are decided there, RES-02 has nothing to measure. Suspects inherit no environment and no home, so
  the libraries are looked for in the checkout, where `place` puts them.
* Licence: MIT. Left out: nothing. Row id: the member's name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe import provenance
from lethe.audit import lines
from lethe.audit.corpora import CorpusError, ListedCorpus, Row
from lethe.audit.lines import Line, verdict_of
from lethe.audit.textio import source_of
from lethe.evidence import controls, elsewhere
from lethe.evidence.specimens import Kind, specimen
from lethe.verifier.problem import Candidate, Problem
from lethe.verifier.verdict import Status

if TYPE_CHECKING:
    from lethe.audit.pool import JudgeLike, JudgeSettings

CORPUS = "gdn_controls"
FOLDER = Path("data/corpus/gdn_controls")
SOURCE = "lethe/kernels/gdn"
FILE = "controls.jsonl"

GATES: dict[str, dict[str, str]] = {
    "linear_attention": {},
    "gla": {"g": "channel"},
    "ssd": {"dt": "head"},
    "deltanet": {"beta": "head"},
    "gdn": {"g": "head", "beta": "head"},
    "kda": {"g": "channel", "beta": "head"},
    "gdn2": {"g": "channel", "b": "channel", "w": "channel"},
}
"""Each member of the family, and whether its gates are one number a head or one a channel."""

DECLARED = ((128,), (128, 64))
"""Keys, and values, for which the kernels are compiled. The problem has them within a function: a number of
the module would be varied together with the size that it declares (`lethe.verifier.sites`)."""

REDUCED = ((16,), (16, 8))
"""Sizes of a head at which the battery takes seconds on a CPU."""


def load(path: str | Path | None = None) -> ListedCorpus:
    """The seven rows, by the native backend of sm_90a. Raises CorpusError where a file is missing."""
    return ListedCorpus(CORPUS, rows(path))


def rows(path: str | Path | None = None, *, native: bool = True) -> list[Row]:
    """The seven rows; not `native`: the same text by the torch backend, with heads of `REDUCED` size."""
    folder = Path(path) if path is not None else provenance.ROOT / FOLDER
    for needed in (folder / "problem.py", folder / "kernel.py", provenance.ROOT / SOURCE):
        if not needed.exists():
            raise CorpusError(f"corpus {CORPUS}: {needed} is missing")
    reference, kernel = (source_of(folder / name, CORPUS) for name in ("problem.py", "kernel.py"))
    keys, values = DECLARED if native else REDUCED
    if not native:
        for name, written, reduced in (("keys", DECLARED[0], keys), ("values", DECLARED[1], values)):
            reference = reference.replace(f"{name} = {written[0]}\n", f"{name} = {reduced[0]}\n")
        reference = reference.replace("heads = 2\n", "heads = 1\n")
    digest = provenance.digest([SOURCE])
    found = []
    for member, gates in GATES.items():
        head = f"MEMBER = {member!r}\nGATES = {gates!r}\n"
        sizes = f"def declared():\n    return {keys!r}, {values!r}\n\n\n"
        backend = f"BACKEND = {'cute_sm90' if native else 'torch'!r}\n"
        problem = (
            f'"""{member}: forward and every gradient, in the chunkwise form."""\n{head}{sizes}{reference}'
        )
        text = f'"""{member} by the operator."""\n{head}{backend}{kernel}'
        text += f"\n# sha256 of the operator's sources: {digest}\n"
        found.append(
            specimen(
                member,
                Kind.HONEST,
                Problem(member, problem, path="problem.py"),
                Candidate(member, text, language="native" if native else "python", path="kernel.py"),
                corpus=CORPUS,
                family="scan",
                language="native" if native else "python",
                operator=member,
            )
        )
    return found


def native_kinds() -> list[Any]:
    """What decides the libraries of the rows, at either number of values a head."""
    from lethe.kernels.gdn.native import KINDS, Kind

    keys, values = DECLARED
    return [Kind("bfloat16", k, v, *come, False) for come in KINDS for k in keys for v in values]


def place() -> None:
    """Put the libraries of the rows where a suspect finds them. RuntimeError says what is missing."""
    from lethe.kernels.gdn.architecture import SM90
    from lethe.kernels.gdn.build import is_current
    from lethe.kernels.gdn.native import libraries

    home, missing = SM90.libraries(), []
    home.mkdir(exist_ok=True)
    home.chmod(0o755)
    for variant in {v.name: v for kind in native_kinds() for v in libraries(kind)}.values():
        origin = next((folder for folder in SM90.folders() if is_current(SM90, variant, folder)), None)
        if origin is None:
            missing.append(variant.name)
            continue
        for suffix in (".so", ".json"):  # the manifest last: it says that the library is there
            file = home / f"{variant.name}{suffix}"
            if origin != home:
                shutil.copyfile(origin / file.name, file)
            file.chmod(0o755 if suffix == ".so" else 0o644)
    if missing:
        raise RuntimeError(
            f"{len(missing)} libraries are missing or not current, the first {missing[0]}: run "
            "'python -m lethe.evidence.gdn_gpu build --folder FOLDER' and set LETHE_GDN_LIBRARIES=FOLDER"
        )


def judge_as_written(settings: JudgeSettings) -> JudgeLike:
    """A judge that leaves the sizes as they are: smaller ones would not be three chunks."""
    from lethe.verifier.judge import Judge
    from lethe.verifier.settings import choose_executor, usual_budget

    usual = usual_budget(choose_executor(settings.device, "native"))
    written = replace(
        usual,
        reference_seconds=120.0,
        reference_bytes=1 << 30,
        prepare_seconds=10 * usual.prepare_seconds,
        wall_seconds=10 * usual.wall_seconds,
        cpu_seconds=10 * usual.cpu_seconds,
    )
    return Judge(profile=settings.profile, device=settings.device, quick=settings.quick, budget=written)


def shortfalls(judged: list[Line]) -> list[str]:
    """What keeps the control from being positive, in sentences; empty when it is (see `controls`).

    Where there is no GPU, RES-02 has nothing to measure and is not asked for.
    """
    found = controls.shortfalls(judged, tuple(GATES))
    away = {line["id"] for line in judged if line["language"] != "native"}
    return [why for why in found if not (": RES-02 is not_applicable" in why and why.split(":")[0] in away)]


def passed(judged: list[Line]) -> int:
    """Members that no gate rejects and that the gates of `controls.MUST_PASS` pass."""
    short = shortfalls(judged)
    return sum(not any(why.split(":")[0].split()[0] == line["id"] for why in short) for line in judged)


def found_in(out: Path) -> list[Line]:
    """The lines of a folder, but for those that say that the harness failed."""
    file = out / FILE
    found = [json.loads(text) for text in file.read_text().splitlines()] if file.is_file() else []
    return [line for line in found if verdict_of(line).status is not Status.HARNESS_FAILED]


def run(out: Path, device: str, workers: int) -> list[str]:
    """Judge the rows that have no line in ``controls.jsonl`` yet; a line as soon as a row is done."""
    from lethe.audit.pool import JudgeSettings, judged

    native = device == "cuda"
    if native:
        place()
    out.mkdir(parents=True, exist_ok=True)
    elsewhere.note(out, device)
    settings = JudgeSettings(
        device=device, quick=True, factory="lethe.evidence.gdn_controls:judge_as_written"
    )
    found = found_in(out)
    known = {(line["id"], verdict_of(line).candidate_sha256) for line in found}
    todo = [row for row in rows(native=native) if (row.id, row.candidate.sha256) not in known]
    for result in judged(todo, settings, workers=min(workers, len(todo))) if todo else ():
        line = lines.make(result.row, result.verdict, settings.record(), result.wall)
        found = [other for other in found if other["id"] != line["id"]] + [line]
        text = "".join(json.dumps(one, sort_keys=True) + "\n" for one in found)
        provenance.write_atomically(out / FILE, text)
        print(line["id"], result.verdict.status, result.verdict.message, flush=True)
    return shortfalls(found)


def record(folder: Path, measured: Path = provenance.ROOT / "data" / "measured") -> Path:
    """Write what `run` left in `folder` to ``<device>/gdn_controls.json``; returns the path."""
    samples = [lines.compact(line) for line in found_in(folder)]
    return elsewhere.record(
        measured / elsewhere.device(folder).slug / "gdn_controls.json", folder, experiment="gdn_controls",
        samples=samples, parameters={}, script="lethe/evidence/gdn_controls.py",
        sources=[SOURCE, str(FOLDER)], command="python -m lethe.evidence.gdn_gpu run --only controls",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lethe.evidence.gdn_controls", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    go = commands.add_parser("run")
    go.add_argument("--out", type=Path, required=True)
    go.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    go.add_argument("--workers", type=int, default=1)
    commands.add_parser("record").add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "record":
        print(record(given.folder))
        return 0
    try:
        short = run(given.out, given.device, given.workers)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(short) or f"all {len(GATES)} controls pass")
    return bool(short)


if __name__ == "__main__":
    sys.exit(main())
