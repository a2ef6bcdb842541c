"""A configuration that cannot work is refused in one sentence, before anything runs."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import yaml

from lethe.paper.config import ConfigError, check, resolve_device
from lethe.provenance import ROOT

CONFIGS = [ROOT / "config.yaml", ROOT / ".test" / "config.yaml"]


@pytest.fixture
def config():
    return yaml.safe_load(CONFIGS[0].read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", CONFIGS, ids=["config.yaml", ".test/config.yaml"])
def test_the_committed_configurations_are_valid(path, tmp_path):
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    (tmp_path / config["corpora"]["house"]).mkdir(parents=True)
    assert check(config, root=tmp_path) == config


BAD = {
    "unknown-device": (("device", "tpu"), "device is 'tpu', but may only be one of auto, cpu, cuda"),
    "unknown-profile": (("profile", "fast"), "profile is 'fast', but may only be one of quick, full"),
    "shards-zero": (("shards", 0), "shards is 0, but must be at least 1"),
    "shards-text": (("shards", "four"), "shards is 'four', but must be of type integer"),
    "seed-negative": (("seed", -1), "seed is -1, but must be at least 0"),
    "record-text": (("record", "yes"), "record is 'yes', but must be of type boolean"),
    "record-on-cpu": (("record", True), "record=true writes what a GPU measured, so it needs device=cuda"),
    "unknown-key": (("colour", "red"), "there is no key 'colour'; the keys are audit, cluster, corpora"),
    "unknown-gate": (("audit.gates", ["EXC-03"]), "audit.gates.0 is 'EXC-03', but may only be one of CMP-01"),
    "no-gate": (("audit.gates", []), "audit.gates is []"),
    "limit-zero": (("audit.limit", 0), "audit.limit is 0, but must be at least 1"),
    "corpus-null": (("corpora.house", None), "corpora.house is None, but must be of type string"),
    "corpus-gone": (("corpora.house", "data/gone"), "corpora.house is 'data/gone', but nothing exists there"),
    "unknown-corpus": (("corpora.mine", "x"), "there is no key 'mine' in 'corpora'"),
    "no-references": (("corpora.dlblas", "lethe"), "corpora.dlblas needs corpora.kernelbench"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_value_is_one_sentence(config, change, message):
    key, value = change
    inner = config
    *parents, last = key.split(".")
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    config["corpora"]["house"] = config["corpora"]["house"] if key == "corpora.house" else "lethe"
    with pytest.raises(ConfigError) as error:
        check(config)
    text = str(error.value)
    assert message in text
    assert text.endswith(".") and "\n" not in text


def test_true_on_the_command_line_is_true(config):
    config.update(record="true", device="cuda")
    config["corpora"]["house"] = "lethe"
    assert check(config)["record"] is True


def test_a_missing_key_is_named(config):
    config = copy.deepcopy(config)
    del config["corpora"]
    with pytest.raises(ConfigError, match="the key 'corpora' is missing"):
        check(config)


def test_cuda_without_a_device_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="device is 'cuda', but torch sees no CUDA device"):
        resolve_device("cuda")


@pytest.mark.slow
def test_snakemake_prints_that_sentence_and_nothing_else():
    pytest.importorskip("snakemake")
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "-n", "--config", "profile=fast"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode != 0
    assert "config: profile is 'fast', but may only be one of quick, full." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_head_node_takes_cuda_as_said(monkeypatch):
    monkeypatch.setattr("lethe.paper.config.CUDA_DRIVERS", ())
    assert resolve_device("cuda", elsewhere=True) == "cuda"
    assert resolve_device("auto", elsewhere=True) == "cpu"
