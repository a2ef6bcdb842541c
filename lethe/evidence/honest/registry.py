"""All rewritings, by name."""

from __future__ import annotations

from lethe.evidence.honest import algorithms, layouts, programs
from lethe.evidence.honest.transform import Transform

TRANSFORMS: dict[str, Transform] = {
    t.name: t for t in (*programs.TRANSFORMS, *layouts.TRANSFORMS, *algorithms.TRANSFORMS)
}
"""In the order in which a problem's rows appear."""

DISHONEST: dict[tuple[str, str], str] = {
    ("channels_last", "norm_groupnorm"): "torch's own group normalisation of channels-last images takes the "
    "variance in one pass, E[x^2] - E[x]^2, which is off by more than 1 where the mean is 1000 deviations; "
    "PRC-02 rejects it, rightly",
    **dict.fromkeys(
        [("inductor", "attention_additive_mask"), ("inductor_dynamic", "attention_additive_mask")],
        "Inductor (torch 2.13) takes it for fused attention and raises on its scale once a size is symbolic, "
        "so that the program refuses legal shapes; CMP-03 says so, rightly",
    ),
}
"""(rewriting, reference) -> why the result is unfaithful although it agrees in float64 on easy draws."""
