"""ECG-like records of PTB-XL's layout from our own code, for machines that have none of the real ones.

A beat is a sum of Gaussian waves (P, Q, R, S, T), each with a direction in space (after McSharry et al.
2003); a lead sees the projection on its own direction. The four pathological superclasses change what their
names say: Q waves and ST elevation, ST depression and inverted T waves, a wide and late QRS, a tall one. Good
for testing code that reads and learns; nothing about medicine follows from them.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lethe.ecg.ptbxl import CLASSES, GENERATED, SECONDS
from lethe.ecg.wfdb import encode

RATE = 100
CODES = {"NORM": "NORM", "MI": "IMI", "STTC": "NDT", "CD": "CLBBB", "HYP": "LVH"}
"""A diagnostic statement of each superclass."""

_PRECORDIAL = np.radians([115.0, 95.0, 75.0, 55.0, 30.0, 0.0])
_LIMBS = np.radians([0.0, 60.0, 120.0, -150.0, -30.0, 90.0])
DIRECTIONS = np.array(
    [[np.cos(a), np.sin(a), 0.0] for a in _LIMBS]
    + [[1.3 * np.cos(a), 0.1, 1.3 * np.sin(a)] for a in _PRECORDIAL]
)
"""Directions [12, 3] of the leads: to the left, down, to the front."""

WAVES = {
    #     centre s, width s, left, down, front (mV)
    "P": (-0.17, 0.025, 0.08, 0.12, 0.02),
    "Q": (-0.030, 0.010, -0.12, -0.06, 0.15),
    "R": (0.000, 0.014, 0.90, 0.90, -0.20),
    "S": (0.030, 0.012, -0.20, -0.15, -0.45),
    "ST": (0.130, 0.050, 0.00, 0.00, 0.02),
    "T": (0.270, 0.050, 0.25, 0.22, 0.15),
}


def _changed(present: set[str], draw: np.random.Generator) -> NDArray[np.float64]:
    """The waves [6, 5] of one patient with these superclasses."""
    waves = np.array(list(WAVES.values()))
    waves[:, 2:] *= draw.normal(1.0, 0.15, (len(waves), 3))
    waves[:, 2:] *= draw.uniform(0.7, 1.3)
    p, q, r, s, st, t = range(6)
    if "MI" in present:
        waves[q, 2:] += np.array([0.0, -0.45, -0.05]) * draw.uniform(0.6, 1.4)
        waves[q, 1] = 0.018
        waves[st, 2:] += np.array([0.0, 0.18, 0.02]) * draw.uniform(0.5, 1.5)
        waves[r, 3] *= 0.6
    if "STTC" in present:
        waves[t, 2:] *= -draw.uniform(0.1, 0.8)
        waves[st, 2:] += np.array([-0.10, -0.05, -0.05]) * draw.uniform(0.5, 1.5)
    if "CD" in present:
        waves[[r, s], 1] *= draw.uniform(1.8, 2.4)
        waves[[s, st, t], 0] += 0.04
        waves[s, 2:] += np.array([0.35, 0.0, -0.40])
    if "HYP" in present:
        waves[r, 2:] += np.array([0.7, -0.1, -0.5]) * draw.uniform(0.7, 1.3)
        waves[p, 2:] *= 1.5
    return waves


def signal(present: set[str], draw: np.random.Generator) -> NDArray[np.float32]:
    """One record [12, 1000] in millivolts at 100 Hz."""
    waves = _changed(present, draw)
    time = np.arange(RATE * SECONDS) / RATE
    interval = draw.uniform(0.65, 1.05)
    beats = np.arange(draw.uniform(0.0, interval), SECONDS + 1, interval)
    beats = beats + draw.normal(0.0, 0.02, beats.shape)
    heart = np.zeros((3, len(time)))
    for centre, width, *direction in waves:
        shape = np.exp(-0.5 * ((time - beats[:, None] - centre) / width) ** 2).sum(0)
        heart += np.array(direction)[:, None] * shape
    slow = draw.uniform(0.0, 0.08, (12, 1)) * np.sin(
        2 * np.pi * (draw.uniform(0.1, 0.4) * time + draw.uniform(0.0, 1.0, (12, 1)))
    )
    noise = draw.normal(0.0, 0.03, (12, len(time)))
    return (DIRECTIONS @ heart + slow + noise).astype(np.float32)


def superclasses(draw: np.random.Generator) -> set[str]:
    """About half are normal; the others have one superclass or more."""
    if draw.random() < 0.45:
        return {"NORM"}
    present = {name for name in CLASSES[1:] if draw.random() < 0.35}
    return present or {str(draw.choice(CLASSES[1:]))}


def generate(folder: Path, records: int, seed: int = 0) -> Path:
    """Write so many records with their tables, in the layout of the whole data set; returns `folder`.

    Every record is drawn from its own generator: more records leave the first ones as they were.
    """
    database = io.StringIO()
    table = csv.writer(database, lineterminator="\n")
    table.writerow(["ecg_id", "patient_id", "scp_codes", "strat_fold", "filename_lr"])
    for ecg_id in range(1, records + 1):
        draw = np.random.default_rng([seed, ecg_id])
        present = superclasses(draw)
        name = f"{ecg_id:05d}_lr"
        file = f"records100/{ecg_id // 1000 * 1000:05d}/{name}"
        header, data = encode(name, signal(present, draw), RATE)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{file}.hea").write_text(header)
        (folder / f"{file}.dat").write_bytes(data)
        codes = {CODES[c]: 100.0 for c in CLASSES if c in present}
        table.writerow([ecg_id, float(ecg_id), str(codes), (ecg_id - 1) % 10 + 1, file])
    statements = [",diagnostic,diagnostic_class", *(f"{code},1.0,{name}" for name, code in CODES.items())]
    (folder / "scp_statements.csv").write_text("\n".join([*statements, "SR,,"]) + "\n")
    (folder / "ptbxl_database.csv").write_text(database.getvalue())
    (folder / GENERATED).write_text(
        "These records were drawn by lethe.ecg.synthetic; they are no patients'.\n"
    )
    return folder
