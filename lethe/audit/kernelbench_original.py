"""KernelBench's own ``eval_kernel_against_ref``, run unmodified from a checkout given by path.

Nothing of theirs is vendored, changed or replaced. Their modules import clients of language models
(`CLIENTS`) that the check never uses; where one is not installed, a placeholder takes its place that
raises on any use, and each line of the differential lists which. Everything else that they import
(torch, numpy, pydantic, requests, tqdm) has to be installed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from lethe.audit.corpora import CorpusError
from lethe.audit.kernelbench_check import NAMED, TRIALS, Outcome, Variant, register_source, said

CLIENTS = (
    "anthropic",
    "dotenv",
    "google",
    "google.generativeai",
    "litellm",
    "openai",
    "together",
    "transformers",
)
"""Packages that their ``utils.py`` imports for querying language models."""
LOCK_ATTEMPTS = 3
"""Their check returns None where another build holds a lock, and asks to be called again."""


def find(checkout: str | Path, variant: Variant) -> Path:
    """The folder that has to be importable. Raises CorpusError where the checkout is not that revision."""
    file = Path(checkout) / variant.file
    how = (
        "git clone https://github.com/ScalingIntelligence/KernelBench && "
        f"git -C KernelBench checkout {variant.revision[:8]}"
    )
    if not file.is_file():
        raise CorpusError(f"no {variant.file} under {checkout}; get KernelBench's own check with: {how}")
    if hashlib.sha256(file.read_bytes()).hexdigest() != variant.sha256:
        raise CorpusError(f"{file} is not that of revision {variant.revision[:8]}; get it with: {how}")
    return (Path(checkout) / variant.root).resolve()


class _Unusable:
    """Stands for a name of a package that is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{self._name}.{name} was used, but its package is not installed")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self._name} was called, but its package is not installed")


class _Placeholder(ModuleType):
    __path__: list[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ == "dotenv" and name == "load_dotenv":
            return lambda *args, **kwargs: False  # what it returns where there is no .env file
        return _Unusable(f"{self.__name__}.{name}")


class _Clients(MetaPathFinder, Loader):
    """Last in ``sys.meta_path``: makes a placeholder for a client that no other finder has found."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in CLIENTS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.made.append(spec.name)
        return _Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


def load(root: Path, variant: Variant) -> tuple[ModuleType, list[str]]:
    """Their module, imported from `root`, and the names of the placeholders that it got.

    Imports CUDA's context as theirs does (a default argument asks for the current device).
    Raises ImportError where a package that they need is missing.
    """
    clients = _Clients()
    sys.meta_path.append(clients)
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(variant.module)
    finally:
        sys.path.remove(str(root))
        sys.meta_path.remove(clients)
    return module, sorted(clients.made)


def check(
    module: ModuleType, reference: str, candidate: str, variant: Variant, *, triton: bool, precision: str
) -> Outcome:
    """Call their function as their own scripts do: five trials, no timing, device 0."""
    import torch

    options: dict[str, Any] = {}
    if variant.casts:
        options = {"backend": "triton" if triton else "cuda", "precision": getattr(torch, precision)}
    if not (triton and variant.triton_from_file):
        register_source(candidate)
        reference = NAMED + reference if triton else reference
    result = None
    for _ in range(LOCK_ATTEMPTS):
        try:
            result = module.eval_kernel_against_ref(
                original_model_src=reference,
                custom_model_src=candidate,
                num_correct_trials=TRIALS,
                measure_performance=False,
                device=torch.device("cuda", 0),
                **options,
            )
        except Exception as e:
            return Outcome(False, "raised", message=said(e))
        if result is not None:
            break
    if result is None:
        return Outcome(None, "locked", message=f"it asked {LOCK_ATTEMPTS} times to be called again")
    return _outcome(result)


def _outcome(result: Any) -> Outcome:
    facts = dict(result.metadata)
    passed = str(facts.get("correctness_trials", "")).strip("()").split("/")[0].strip()
    complaint = next(
        (facts[k] for k in ("compilation_error", "runtime_error", "correctness_issue") if k in facts), ""
    )
    if isinstance(complaint, BaseException):
        complaint = said(complaint)
    if "max_difference" in facts:
        complaint = f"{complaint}: off by up to {max(facts['max_difference'], key=_as_number)}"
    return Outcome(
        accepted=bool(result.correctness),
        compiled=bool(result.compiled),
        passed=int(passed) if passed.isdigit() else None,
        message=" ".join(str(complaint).split())[:300],
    )


def _as_number(text: str) -> float:
    value = float(text)
    return value if value == value else float("inf")
