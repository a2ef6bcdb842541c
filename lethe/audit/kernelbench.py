"""KernelBench problems as references (ScalingIntelligence/KernelBench, MIT).

Two corpora here were generated against revision 48642c5c (January 2025); later
revisions changed sizes and inputs of most problems, so a kernel would be judged
against a reference that it was not written for. `KernelBench` therefore checks
the revision by content and says so when it is another one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from lethe.audit.corpora import CorpusError
from lethe.audit.textio import source_of
from lethe.verifier.problem import Problem

REVISION = "48642c5c4ff616e1a2339f7e84b72eea0ac1a6a8"
CONTENT = "164ee6910b9b6d0daa99b026efdbf8aa42cc4763fe6cc8a51c9b0426b6520b7c"
"""`content_digest` of levels 1 to 3 (250 files) at REVISION."""

HOW = (
    "git clone https://github.com/ScalingIntelligence/KernelBench && "
    f"git -C KernelBench checkout {REVISION[:8]}"
)


def content_digest(root: Path) -> str:
    """sha256 over (level/name, sha256 of content) of every problem of levels 1 to 3, sorted."""
    total = hashlib.sha256()
    for path in sorted(root.glob("level[123]/*.py"), key=lambda p: (p.parent.name, p.name)):
        total.update(f"{path.parent.name}/{path.name}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


class KernelBench:
    """The problems of a KernelBench checkout, by path or by (level, number)."""

    def __init__(self, checkout: str | Path, *, any_revision: bool = False) -> None:
        """`checkout` is the repository root or its inner ``KernelBench`` folder.

        Raises CorpusError if no problems are there, or if they are another revision's
        and `any_revision` is false.
        """
        checkout = Path(checkout)
        for root in (checkout / "KernelBench", checkout):
            if (root / "level1").is_dir():
                self.root = root
                break
        else:
            raise CorpusError(f"no KernelBench problems (level1/*.py) under {checkout}; get them with: {HOW}")
        if not any_revision and content_digest(self.root) != CONTENT:
            raise CorpusError(
                f"the KernelBench problems under {checkout} are not those of revision {REVISION[:8]}, "
                f"for which this corpus was written; get them with: {HOW}"
            )

    def problem(self, path: str) -> Problem:
        """A problem by its path, ``KernelBench/level1/19_ReLU.py`` or ``level1/19_ReLU.py``."""
        inner = path.removeprefix("KernelBench/")
        file = self.root / inner
        return Problem(name=inner.removesuffix(".py"), source=source_of(file, "kernelbench"), path=inner)

    def numbered(self, level: int, number: int) -> Problem:
        """Problem `number` of `level`. Raises CorpusError if there is none."""
        for file in sorted((self.root / f"level{level}").glob(f"{number}_*.py")):
            return self.problem(f"level{level}/{file.name}")
        raise CorpusError(f"KernelBench has no problem {number} in level {level}")


FAMILIES: tuple[tuple[str, str], ...] = (
    ("attention", r"attention"),
    ("softmax", r"softmax"),
    ("loss", r"loss|cross_entropy|kl_?div"),
    ("scan", r"cum(sum|prod)|scan|mamba|recurrence|_rnn|lstm|gru"),
    ("pooling", r"pool"),
    ("conv", r"conv"),
    ("norm", r"norm"),
    ("matmul", r"matmul|matrix|gemm|linear"),
    ("reduction", r"sum|mean|max|min|prod|reduc|arg|variance"),
    ("activation", r"relu|gelu|silu|swish|sigmoid|tanh|softplus|softsign|elu|activation"),
)


def family_of(name: str) -> str:
    """Operator class guessed from a problem's name; ``"fused"`` for level 2, ``"other"`` if nothing fits."""
    text = name.lower()
    if re.search(r"(^|/)level_?2", text) or text.startswith("fused"):
        return "fused"
    for family, pattern in FAMILIES:
        if re.search(pattern, text):
            return family
    return "other"
