"""Reads one record in PhysioNet's WFDB layout: a header in text, and signals in format 16.

Format 16 holds every sample as a little-endian int16, the leads interleaved. The header gives each lead's
gain, baseline and first sample, and the sum of its samples modulo 2^16, so that a damaged file is recognised
by the record alone (WFDB header specification, https://wfdb.io/spec/header-files.html).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
"""The twelve leads in PTB-XL's order."""

GAIN = re.compile(r"(?P<gain>[-+.\deE]+)(?:\((?P<baseline>-?\d+)\))?(?:/(?P<units>\S+))?")
INVALID = -32768
"""The digital value that format 16 keeps for a missing sample."""


class RecordError(ValueError):
    """A record that cannot be used; the message says why in one clause."""


@dataclass(frozen=True)
class Lead:
    """One signal's line of a header."""

    name: str
    gain: float
    """Digital units a millivolt."""
    baseline: int
    first: int
    checksum: int
    """Sum of the samples modulo 2^16."""


@dataclass(frozen=True)
class Header:
    """A record's header: `samples` a lead at `rate` Hz, in the file `data` beside it."""

    name: str
    rate: float
    samples: int
    data: str
    leads: tuple[Lead, ...]


def parse_header(text: str) -> Header:
    """A record of one signal file in format 16. Raises RecordError for anything else."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        name, count, rate, samples = lines[0].split()[:4]
        signals = [line.split(maxsplit=8) for line in lines[1 : 1 + int(count)]]
        if len(signals) != int(count):
            raise RecordError(f"its header announces {count} leads and describes {len(signals)}")
        files, formats = {s[0] for s in signals}, {s[1] for s in signals}
        leads = tuple(_lead(s) for s in signals)
        header = Header(name.split("/")[0], float(rate.split("/")[0]), int(samples), signals[0][0], leads)
    except (IndexError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError("its header is not a WFDB header") from None
    if len(files) != 1 or formats != {"16"}:
        raise RecordError(f"its signals are in format {', '.join(sorted(formats))}; one file in 16 is read")
    return header


def _lead(fields: list[str]) -> Lead:
    """``file format gain(baseline)/units bits zero first checksum block name``."""
    found = GAIN.fullmatch(fields[2])
    if found is None:
        raise RecordError(f"its header has a gain {fields[2]!r}")
    units, zero = found["units"] or "mV", int(fields[4])
    if units != "mV":
        raise RecordError(f"its signals are in {units}, not in mV")
    baseline = int(found["baseline"]) if found["baseline"] is not None else zero
    gain = float(found["gain"])
    if not gain > 0:
        raise RecordError(f"its header has a gain {fields[2]!r}")
    return Lead(fields[8], gain, baseline, int(fields[5]), int(fields[6]) % 65536)


def decode(header: Header, data: bytes) -> NDArray[np.float32]:
    """The signals [leads, samples] in millivolts, in `LEADS` order.

    Raises RecordError if the file is shorter or longer than announced, a lead is missing, a sample is marked
    as missing, or a lead's first sample or checksum is not the header's.
    """
    names = [lead.name.upper() for lead in header.leads]
    if sorted(names) != sorted(LEADS):
        raise RecordError(f"its leads are {', '.join(names)}, not the twelve standard ones")
    expected = 2 * len(names) * header.samples
    if len(data) != expected:
        raise RecordError(f"its signal file has {len(data)} bytes, not {expected}")
    digital = np.frombuffer(data, dtype="<i2").reshape(header.samples, len(names)).T
    for lead, samples in zip(header.leads, digital, strict=True):
        if (samples == INVALID).any():
            raise RecordError(f"lead {lead.name} has missing samples")
        if samples[0] != lead.first or int(samples.sum(dtype=np.int64)) % 65536 != lead.checksum:
            raise RecordError(f"lead {lead.name} does not have its header's checksum")
    baseline = np.array([lead.baseline for lead in header.leads], dtype=np.float32)[:, None]
    gain = np.array([lead.gain for lead in header.leads], dtype=np.float32)[:, None]
    order = [names.index(lead) for lead in LEADS]
    return ((digital - baseline) / gain)[order].astype(np.float32)


def encode(name: str, millivolts: NDArray[np.float32], rate: int, gain: float = 1000.0) -> tuple[str, bytes]:
    """Header text and signal bytes of signals [12, samples]; `decode` gives them back within 1 / (2 gain)."""
    limit = 32767
    digital = np.clip(np.rint(millivolts * gain), -limit, limit).astype("<i2")
    lines = [f"{name} {len(LEADS)} {rate} {digital.shape[1]}"]
    for lead, samples in zip(LEADS, digital, strict=True):
        checksum = int(samples.sum(dtype=np.int64)) % 65536
        lines.append(f"{name}.dat 16 {gain}(0)/mV 16 0 {samples[0]} {checksum} 0 {lead}")
    return "\n".join(lines) + "\n", digital.T.tobytes()
