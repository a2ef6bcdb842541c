"""Specificity: honest candidates by the hundred, none of which the verifier may reject without a true reason.

`load` gives them as a corpus (``lethe audit --corpus honest``); `report` says how many were judged, how many
were rejected, and how large the false-rejection rate can be at most.
"""

from __future__ import annotations

from lethe.evidence.honest.corpus import load

__all__ = ["load"]
