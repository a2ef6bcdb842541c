"""Fetch the public corpora: ``lethe fetch CORPUS --to FOLDER``.

Every source is pinned by a commit, or, where a host converts files itself, by what came (its revision
and sha256 are recorded). A file whose sha256 is known is refused if it differs; archives, whose bytes the
host may pack anew, are checked by the content that is taken out of them (`unpack`). Downloads resume,
and a file appears under its name only when it is whole. Each folder gets a ``SOURCE-<corpus>.json`` with the
licence, the addresses, the revisions and the checksums of what was got.
"""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.audit.kernelbench import REVISION

CHUNK = 1 << 20
SECONDS = 60.0
"""Without a byte for so long, a download is given up; it resumes later."""
LATER = "423217d9fda91e0c2d67e4a43bf62f96f6d104f1"
CUDA_L1 = "51e8356bf844101cab2aeeca4bdff47ebb1953b8"
DLBLAS = "8cfbfcac326686c43849de9736086084c9516bd5"
PUBLISHED = "e255f25b11dbc10a3eca29988abf83571fc9b0a0"
RAW = "https://raw.githubusercontent.com"
ARCHIVE = "https://codeload.github.com/{repository}/tar.gz/{revision}"
PARQUET = (
    "https://huggingface.co/datasets/{name}/resolve/refs%2Fconvert%2Fparquet/default/{part}/0000.parquet"
)
"""The host's own conversion; its revision is not known beforehand, so the answer's is recorded."""


@dataclass(frozen=True)
class File:
    """One thing to get."""

    url: str
    name: str
    sha256: str = ""
    """Empty where it cannot be known beforehand."""


@dataclass(frozen=True)
class Source:
    """Where a corpus comes from, and what is made of it."""

    licence: str
    files: tuple[File, ...]
    unpack: str = ""
    """``module:function`` of (downloaded files, folder) -> the paths that loaders take."""
    size: str = ""
    """About how much is downloaded, for people."""


def _cuda_l1(gpu: str, sha256: str) -> File:
    url = f"{RAW}/deepreinforce-ai/CUDA-L1/{CUDA_L1}/optimized_cuda_code/{gpu}.json"
    return File(url, f"cuda_l1-{gpu}.json", sha256)


def _archive(repository: str, revision: str) -> tuple[File, ...]:
    name = f"{repository.split('/')[1]}-{revision[:8]}.tar.gz"
    return (File(ARCHIVE.format(repository=repository, revision=revision), name),)


def _parquet(name: str, **parts: str) -> tuple[File, ...]:
    return tuple(
        File(PARQUET.format(name=name, part=part), f"{file}.parquet") for file, part in parts.items()
    )


SOURCES: dict[str, Source] = {
    "kernelbench": Source(
        "MIT",
        _archive("ScalingIntelligence/KernelBench", REVISION),
        "lethe.audit.unpack:kernelbench",
        "10 MB",
    ),
    "kernelbench-later": Source(
        "MIT",
        _archive("ScalingIntelligence/KernelBench", LATER),
        "lethe.audit.unpack:kernelbench_later",
        "10 MB",
    ),
    "cuda_l1": Source(
        "MIT",
        (
            _cuda_l1("h100", "bb3c6f83ca3502d4ff53512163e14171f09b1124c35d2134dfd43576baefe57e"),
            _cuda_l1("a100", "2a0c871afc82584611a62a67b8ba85d16c72d2b0a58de7183badc34f9ed1719d"),
            _cuda_l1("h20", "012a072f734be60cad4c5635ac28ae799b2fe3a3783410f4fe2159f7af79502a"),
            _cuda_l1("l40", "c73e686cc762857ded8f71e145e6fa0dc3eef7a302e54e01b96c04d706485c65"),
            _cuda_l1("3090", "a63c64d848114c13a4f0f13cabc83886fc6447842fe61a8de2bd033d9047e9b1"),
            *_archive("ScalingIntelligence/KernelBench", REVISION),
        ),
        "lethe.audit.unpack:cuda_l1",
        "26 MB",
    ),
    "dlblas": Source(
        "BSD-3-Clause",
        _archive("DeepLink-org/DLBlas", DLBLAS),
        "lethe.audit.unpack:dlblas",
        "some 100 MB (49,015 programs, most of them copies in checkpoints)",
    ),
    "drkernel": Source(
        "see the data set's card", _parquet("hkust-nlp/drkernel-coldstart-8k", drkernel="train")
    ),
    "sakana": Source(
        "CC-BY-4.0",
        _parquet(
            "SakanaAI/AI-CUDA-Engineer-Archive",
            **{f"sakana-level{i}": f"level_{i}" for i in (1, 2, 3)},
        ),
    ),
    "published": Source(
        "MIT",
        (
            File(
                f"{RAW}/RishiShah99/lethe/{PUBLISHED}/results/audit_rows.jsonl.gz",
                "published_audit_rows.jsonl.gz",
                "e20a65ede302f531bbc81170a2dd3f0e42185fd4d12c883f71b5448a00dcde40",
            ),
        ),
        size="218 kB",
    ),
}


def fetch(
    name: str,
    to: str | Path,
    *,
    sources: dict[str, Source] | None = None,
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """Download a corpus into the folder `to`; returns the paths that its loader takes.

    What is there already, whole, is not downloaded again. Raises CorpusError, in one sentence, for an
    unknown name, without a connection, and where a checksum differs.
    """
    known = SOURCES if sources is None else sources
    if name not in known:
        raise CorpusError(f"no source for {name!r}; there are {', '.join(known)}")
    source, folder = known[name], Path(to)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CorpusError(f"cannot write {folder}: {e.strerror}") from None
    got = [_get(file, folder, tell) for file in source.files]
    paths = [folder / file.name for file in source.files]
    if source.unpack:
        from importlib import import_module

        module, _, function = source.unpack.partition(":")
        paths = getattr(import_module(module), function)(paths, folder)
    record = {"corpus": name, "licence": source.licence, "files": got, "made": [p.name for p in paths]}
    _write(folder / f"SOURCE-{name}.json", json.dumps(record, indent=1).encode())
    return paths


def _get(file: File, folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Have `file` whole in `folder`; returns what it is."""
    target, part = folder / file.name, folder / (file.name + ".part")
    facts: dict[str, Any] = {"url": file.url, "name": file.name, "revision": None}
    if target.is_file() and (not file.sha256 or digest(target) == file.sha256):
        tell(f"{target} is there")
    else:
        tell(f"{file.url} -> {target}")
        facts["revision"] = _download(file.url, part, target)
        found = digest(part)
        if file.sha256 and found != file.sha256:
            part.unlink()
            raise CorpusError(f"{file.url} has sha256 {found}, not {file.sha256}; nothing was kept")
        part.replace(target)
    return {**facts, "sha256": digest(target), "bytes": target.stat().st_size}


def _download(url: str, part: Path, target: Path) -> str | None:
    """Append to `part` what it lacks of `url`; returns the revision that the host names, if any."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            resumed = answer.status == 206
            with part.open("ab" if resumed else "wb") as file:
                while block := answer.read(CHUNK):
                    file.write(block)
            expected = answer.headers.get("Content-Length")
            size = part.stat().st_size - (have if resumed else 0)
            if expected is not None and size != int(expected):
                raise CorpusError(
                    f"{url} broke off after {size} of {expected} bytes; the same command resumes"
                )
            revision: str | None = answer.headers.get("X-Repo-Commit")
            return revision
    except urllib.error.HTTPError as e:
        if e.code == 416:  # the part is the whole file already
            return None
        raise CorpusError(f"{url} answers {e.code} ({e.reason}); its publisher may have moved it") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as e:
        reason = getattr(e, "reason", None) or e
        raise CorpusError(
            f"{url} cannot be reached ({reason}); with a connection run the same command again, "
            f"or put the file at {target}"
        ) from None


def digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
