"""Kernels that a candidate launches from a library of device code of its own, and what they need of the GPU.

Triton is asked itself (`resources`). A library that goes through the CUDA runtime or driver is seen by
CUPTI alone, which torch's profiler reads: names, registers, shared memory and threads of every launch. Whose
a kernel is follows from where its code lies: in a file that was mapped after the candidate was loaded, and
that no installed package of torch, Triton or NVIDIA holds. Other kernels are nobody's finding. Like
`launches`, evidence of second rank: the candidate lives in the same process.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lethe.verifier.executors.resources import KernelResource

RUNS = 2
"""Traced calls: what CUPTI sets up at its first one may cost that call's earliest records."""


def mapped() -> frozenset[str]:
    """Files whose content is mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return frozenset(
        line.split(maxsplit=5)[5] for line in lines if line.count("/") and "(deleted)" not in line
    )


def launched(call: Callable[[], Any], before: frozenset[str]) -> list[dict[str, Any]]:
    """The needs of the candidate's own kernels that `call` launches; `before`: `mapped` before it was loaded.

    Plain dicts of `KernelResource`, one for each kernel. Spills are not in the trace (-1).
    """
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(RUNS):
            call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        seen.export_chrome_trace(file)
        events = json.loads(Path(file).read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    major, minor = torch.cuda.get_device_capability()
    texts = [Path(path).read_bytes() for path in own_files(mapped() - before)]
    return [asdict(row) for row in needs(events, f"sm_{major}{minor}") if holds(texts, row.name)]


def own_files(files: Iterable[str]) -> list[str]:
    """Those that are regular files outside the packages of torch, Triton and NVIDIA."""
    import triton

    packages = [Path(torch.__file__).parent, Path(triton.__file__).parent]
    packages.append(packages[0].parent / "nvidia")
    homes = [os.path.realpath(p) + os.sep for p in packages]
    system = re.compile(r"/lib(cuda|nvidia|cupti|cudart|nvrtc|cublas|cudnn)[\w.-]*\.so[\d.]*$")
    return sorted(
        f for f in files if os.path.isfile(f) and not f.startswith(tuple(homes)) and not system.search(f)
    )


def needs(events: Iterable[dict[str, Any]], target: str) -> list[KernelResource]:
    """What each kernel of a trace (torch's Chrome format) needs, at the most, by name."""
    found: dict[str, KernelResource] = {}
    for event in events:
        told = event.get("args", {})
        if event.get("cat") != "kernel" or "registers per thread" not in told:
            continue
        threads = 1
        for size in told.get("block", ()):
            threads *= int(size)
        name, shared = str(event["name"]), int(told.get("shared memory", -1))
        if name in found and found[name].shared_bytes >= shared:
            continue
        registers = int(told["registers per thread"])
        found[name] = KernelResource(name, target, -(-threads // 32), 0, registers, -1, -1, shared, 0)
    return list(found.values())


def holds(texts: Iterable[bytes], name: str) -> bool:
    """Whether one of these files holds the code of a kernel, by the section that a cubin keeps it in.

    A trace gives names demangled, a cubin as they are; a compressed one holds no names.
    """
    plain = re.split(r"[<(]", name)[0].split("::")[-1].split()[-1:]
    if not plain:
        return False
    section = re.compile(rb"\.text\.[\w$]*" + re.escape(plain[0].encode()))
    return any(section.search(text) for text in texts)
