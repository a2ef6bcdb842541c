"""The workflow's configuration: checked once, before anything runs, with one clear sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lethe.provenance import ROOT

CUDA_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")
"""Without one of these there is no CUDA device, and torch need not be imported to find that out."""

SCHEMA_FILE = ROOT / "config.schema.yaml"


class ConfigError(ValueError):
    """The configuration cannot be used; the message is one sentence."""


def check(config: Mapping[str, Any], *, schema: Path = SCHEMA_FILE, root: Path = ROOT) -> dict[str, Any]:
    """Return the configuration if it is usable, with ``record`` and ``cluster`` as truth values.

    `config` is the merged content of ``config.yaml`` and ``--config``, which hands over ``record=true`` as
    text; the corpora paths in it are relative to `root`.
    Raises ConfigError naming the first key that is wrong and what it may be.
    """
    import jsonschema
    import yaml

    config = dict(config)
    for key in ("record", "cluster"):
        if config.get(key) in ("true", "false"):
            config[key] = config[key] == "true"
    validator = jsonschema.Draft202012Validator(yaml.safe_load(schema.read_text(encoding="utf-8")))
    errors = sorted(validator.iter_errors(config), key=lambda e: (len(e.absolute_path), str(e.message)))
    if errors:
        raise ConfigError(_sentence(errors[0]))
    if config["record"] and config["device"] != "cuda":
        raise ConfigError(
            "config: record=true writes what a GPU measured, so it needs device=cuda "
            f"(device is {config['device']!r})."
        )
    for name, path in config["corpora"].items():
        if path is not None and not (root / path).exists():
            raise ConfigError(f"config: corpora.{name} is {path!r}, but nothing exists there.")
    ecg = config["ecg"]["data"]
    if ecg is not None and not (root / ecg).exists():
        raise ConfigError(f"config: ecg.data is {ecg!r}, but nothing exists there.")
    third_party = [n for n in ("dlblas", "cuda_l1") if config["corpora"].get(n) is not None]
    if third_party and config["corpora"].get("kernelbench") is None:
        raise ConfigError(
            f"config: corpora.{third_party[0]} needs corpora.kernelbench, "
            "a checkout that holds the reference of each row."
        )
    return config


def _sentence(error: Any) -> str:
    key = ".".join(str(p) for p in error.absolute_path)
    where = f"config: {key} is {error.instance!r}" if key else "config"
    if error.validator == "additionalProperties":
        known = set(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - known)
        inside = f" in {key!r}" if key else ""
        return f"config: there is no key {unknown[0]!r}{inside}; the keys are {', '.join(sorted(known))}."
    if error.validator == "required":
        missing = sorted(set(error.validator_value) - set(error.instance))
        inside = f" in {key!r}" if key else ""
        return f"config: the key {missing[0]!r} is missing{inside}."
    if error.validator == "enum":
        return f"{where}, but may only be one of {', '.join(map(str, error.validator_value))}."
    if error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        return f"{where}, but must be of type {' or '.join(kinds)}."
    if error.validator in ("minimum", "maximum"):
        bound = "at least" if error.validator == "minimum" else "at most"
        return f"{where}, but must be {bound} {error.validator_value}."
    return f"{where}: {error.message}."


def resolve_device(wanted: str, elsewhere: bool = False) -> str:
    """``"cpu"`` or ``"cuda"`` for ``"auto"``, ``"cpu"`` or ``"cuda"``.

    `elsewhere`: the jobs run on other machines, so that ``"cuda"`` is taken as said; each job that needs the
    device looks for it itself.
    Raises ConfigError if CUDA is asked for and torch sees no device.
    """
    if wanted == "cuda" and elsewhere:
        return "cuda"
    if wanted == "cpu" or (wanted == "auto" and not any(map(os.path.exists, CUDA_DRIVERS))):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise ConfigError("config: device is 'cuda', but torch sees no CUDA device on this machine.")
    return "cpu"
