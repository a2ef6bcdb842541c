"""The graph on a cluster: what Snakemake's slurm executor would submit, shown to a stand-in for sbatch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lethe.provenance import ROOT

needs_slurm = pytest.mark.skipif(
    importlib.util.find_spec("snakemake") is None
    or importlib.util.find_spec("snakemake_executor_plugin_slurm") is None,
    reason="needs snakemake and its slurm executor: pip install 'lethe[paper,slurm]'",
)
TOOLS = ("sbatch", "squeue", "sacct", "sinfo", "sacctmgr", "scancel", "scontrol")


def snakemake(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run the workflow on the cluster profile from a checkout-like folder."""
    for name in ("Snakefile", "config.yaml", "config.schema.yaml", "rules", "profiles", "lethe", "notebooks"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "book").symlink_to(ROOT / "book")
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "data").mkdir()  # results of the checkout itself would leave nothing to be done
    for part in ("corpus", "published", "measured", "review"):
        (folder / "data" / part).symlink_to(ROOT / "data" / part)
    command = [
        sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", *arguments,
        "--config", "device=cuda", "cluster=true", "shards=2",
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@needs_slurm
@pytest.mark.slow
def test_the_cluster_profile_lists_a_gpu_for_each_shard(tmp_path):
    done = snakemake(tmp_path, "-n", "-p")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    text = done.stdout + done.stderr
    shards = [block for block in text.split("rule ") if block.startswith("audit:")]
    assert len(shards) == 2
    assert all("gpu=1" in block and "--workers 14" in block and "--device cuda" in block for block in shards)


@needs_slurm
@pytest.mark.slow
def test_a_shard_is_submitted_with_one_gpu_and_its_cores(tmp_path):
    tools, log = tmp_path / "tools", tmp_path / "submitted"
    tools.mkdir()
    for name in TOOLS:
        says = f'echo "$@" >> {log}; echo refused >&2; exit 1' if name == "sbatch" else "exit 0"
        (tools / name).write_text(f"#!/bin/sh\n{says}\n")
        (tools / name).chmod(0o755)
    home = tmp_path / "checkout"
    home.mkdir()
    snakemake(home, "--until", "audit", "--slurm-no-account", "--retries", "0", path=str(tools))
    submitted = log.read_text().splitlines()
    assert len(submitted) == 2
    for line in submitted:
        assert "--gpus=1" in line and "--cpus-per-task=14" in line and "audit:corpus=house" in line
