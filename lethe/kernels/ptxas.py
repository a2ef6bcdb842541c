"""What a compiled kernel uses, as the ptxas that Triton bundles reports it. No driver is touched."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import triton


def assembled(ptx: str, target: int) -> tuple[int, int, int]:
    """Registers, stack and spill bytes a thread, from ``ptxas -v`` on the PTX of a compiled kernel."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    match = re.search(r"\.target\s+(\w+)", ptx)
    name = match[1] if match else f"sm_{target}"
    # Which of the bundled assemblers knows this PTX version depends on the release of Triton.
    candidates = [tool for tool in (tools / "ptxas-blackwell", tools / "ptxas") if tool.exists()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        for tool in candidates:
            command = [str(tool), "-v", f"--gpu-name={name}", str(file), "-o", f"{folder}/kernel.cubin"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
    found = reported(done.stderr + done.stdout)
    if found is None:
        raise RuntimeError(f"ptxas reported no resources: {(done.stderr + done.stdout)[:200]}")
    return found


def reported(log: str) -> tuple[int, int, int] | None:
    """Registers, stack and spill bytes in a log of ``ptxas -v``; None when there are none in it."""
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    used = re.search(r"Used (\d+) registers", log)
    if frame is None or used is None:
        return None
    return int(used[1]), int(frame[1]), int(frame[2]) + int(frame[3])
