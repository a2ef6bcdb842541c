"""What is made of downloaded files: checkouts, and the JSON lines that the loaders read.

The results are checked by content, because a host may pack an archive anew.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.audit.download import CUDA_L1, DLBLAS
from lethe.audit.kernelbench import KernelBench, family_of
from lethe.audit.kernelbench_check import VARIANTS

PROGRAM = re.compile(
    r"dlblas/kernels/output/level(?P<level>\d)_(?P<name>[^/]+)/triton_kernel_evolution/programs/[^/]+\.json$"
)
STAGES = ("success", "wrong_answer", "compile_error")
"""Evaluated programs; ``no_valid_triton_code``, ``infra_error`` and the seed ``reference code`` are none."""
CONTENT = {
    "cuda_l1": "320c013aea3e8f476404791956667c5f967591071f4506f5153cb620a3c53a6c",
    "dlblas": "7fa25a5ed96e64d0112298e7e3169cc5fb18bee1257c7e064c8951cbe024b16f",
}
"""`content` of the records at the pinned commits."""

FAMILIES = {
    "88_MinGPTNewGelu": "activation",
    **dict.fromkeys(("28_VisionTransformer", "29_SwinMLP", "30_SwinTransformerV2"), "attention"),
    **dict.fromkeys(("32_ConvolutionalVisionTransformer", "44_MiniGPTBlock"), "attention"),
    **dict.fromkeys(("39_GRU", "40_GRUHidden", "41_GRUBirectional", "42_GRUBidirectionalHidden"), "other"),
    **dict.fromkeys(("21_EfficientNetMBConv", "45_UNetSoftmax"), "other"),
}
"""Problems whose name says little about what they compute; the others are classed by `family_of`.
The strata of the audit's order depend on these classes, so they are fixed here."""


def family(level: int, name: str) -> str:
    """Operator class of a problem by level and file name without ``.py``."""
    return FAMILIES.get(name) or family_of(f"level{level}/{name}")


def content(records: Iterable[dict[str, Any]]) -> str:
    """sha256 over (id, accepted, sha256 of the candidate) of the records in order."""
    total = hashlib.sha256()
    for r in records:
        total.update(f"{r['id']}\0{r['accepted']}\0".encode())
        total.update(hashlib.sha256(r["candidate_source"].encode()).digest())
    return total.hexdigest()


def kernelbench(files: Sequence[Path], folder: Path) -> list[Path]:
    """A checkout ``KernelBench-48642c5c``: problems, and KernelBench's own check."""
    checkout = _checkout(files[0], folder / "KernelBench-48642c5c")
    KernelBench(checkout)
    return [checkout]


def kernelbench_later(files: Sequence[Path], folder: Path) -> list[Path]:
    """A checkout of the revision with per-dtype tolerances."""
    from lethe.audit.kernelbench_original import find

    variant = VARIANTS["later"]
    checkout = _checkout(files[0], folder / f"KernelBench-{variant.revision[:8]}")
    find(checkout, variant)
    return [checkout]


def _checkout(archive: Path, target: Path) -> Path:
    """Unpack an archive of a repository without its outermost folder."""
    if target.is_dir():
        return target
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(part, filter="data")
    except (tarfile.TarError, OSError, EOFError) as e:
        raise CorpusError(f"{archive} cannot be unpacked ({e}); delete it and fetch again") from None
    (inner,) = part.iterdir()
    inner.replace(target)
    part.rmdir()
    return target


def cuda_l1(files: Sequence[Path], folder: Path) -> list[Path]:
    """``cuda_l1.jsonl.gz`` of the five sets; problems get their names from the last file, KernelBench."""
    *sets, archive = files
    names = problem_names(archive)
    records = [r for file in sets for r in cuda_l1_records(file, names)]
    return [_written(folder / "cuda_l1.jsonl.gz", records, "cuda_l1")]


def problem_names(archive: Path) -> dict[tuple[int, int], str]:
    """(level, number) -> file name without ``.py``, of the problems in an archive of KernelBench."""
    pattern = re.compile(r".*/KernelBench/level([123])/((\d+)_.*)\.py")
    try:
        with tarfile.open(archive) as packed:
            found = [pattern.fullmatch(name) for name in packed.getnames()]
    except (tarfile.TarError, OSError, EOFError) as e:
        raise CorpusError(f"{archive} cannot be unpacked ({e}); delete it and fetch again") from None
    return {(int(m[1]), int(m[3])): m[2] for m in found if m}


def cuda_l1_records(file: Path, names: Mapping[tuple[int, int], str]) -> Iterator[dict[str, Any]]:
    """The rows of one set, ``cuda_l1-<gpu>.json`` with a JSON object a line (see `lethe.audit.cuda_l1`)."""
    gpu = file.stem.partition("-")[2]
    for text in file.read_text(encoding="utf-8").splitlines():
        r = json.loads(text)
        source, score = r["custom_code"], r["score_default"]
        if source is None and score is None:
            continue
        source = "None" if source is None else source
        level = int(r["level_id"])
        name = names[level, int(r["task_id"])]
        yield {
            "id": f"cudal1-{gpu}-L{r['level_id']}_{r['task_id']}",
            "corpus": "cuda-l1",
            "op_name": name,
            "op_class": family(level, name),
            "level": level,
            "reference_source": r["ref_code"],
            "candidate_source": source,
            "language": "cuda_inline" if "cpp_extension" in source else "torch_only",
            "accepted": True,
            "source_speedup": score,
            "gpu": gpu,
            "source_repo": "deepreinforce-ai/CUDA-L1",
            "source_commit": CUDA_L1,
            "source_path": f"optimized_cuda_code/{gpu}.json",
            "licence": "MIT",
        }


def dlblas(files: Sequence[Path], folder: Path) -> list[Path]:
    """``dlblas_openevolve.jsonl.gz`` of the archive's programs (`lethe.audit.dlblas`: what is left out)."""
    try:
        with tarfile.open(files[0], "r|*") as packed:
            programs = sorted(_programs(packed), key=lambda p: p[0])
    except (tarfile.TarError, OSError, EOFError) as e:
        raise CorpusError(f"{files[0]} cannot be unpacked ({e}); delete it and fetch again") from None
    records = list(dlblas_records(programs))
    return [_written(folder / "dlblas_openevolve.jsonl.gz", records, "dlblas")]


def _programs(packed: tarfile.TarFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for member in packed:
        path = member.name.partition("/")[2]
        if PROGRAM.fullmatch(path) and (file := packed.extractfile(member)) is not None:
            yield path, json.load(file)


def dlblas_records(programs: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Rows of (path in the repository, program) in path order."""
    seen: set[str] = set()
    for path, program in programs:
        found = PROGRAM.fullmatch(path)
        stage, source = program["metrics"].get("stage"), program["code"]
        if found is None or stage not in STAGES or "class ModelNew" not in source or source in seen:
            continue
        seen.add(source)
        level, name = int(found["level"]), found["name"]
        yield {
            "id": f"dlblas-oe-L{level}_{name.partition('_')[0]}-{program['id'][:8]}",
            "corpus": "dlblas-openevolve",
            "op_name": name,
            "op_class": family(level, name),
            "level": level,
            "problem": f"KernelBench/level{level}/{name}.py",
            "candidate_source": source,
            "language": "triton",
            "accepted": stage == "success",
            "source_stage": stage,
            "source_speedup": program["metrics"].get("speed_up"),
            "generation": program.get("generation"),
            "source_repo": "DeepLink-org/DLBlas",
            "source_commit": DLBLAS,
            "source_path": path,
            "licence": "BSD-3-Clause",
        }


def _written(path: Path, records: list[dict[str, Any]], corpus: str) -> Path:
    """Write records as JSON lines, whole or not at all, if they are those of the pinned commit."""
    if content(records) != CONTENT[corpus]:
        raise CorpusError(f"the rows made for {corpus} are not those of the pinned commit; fetch it again")
    part = path.with_name(path.name + ".part")
    with gzip.open(part, "wt", encoding="utf-8") as file:
        for r in records:
            file.write(json.dumps(r) + "\n")
    part.replace(path)
    return path
