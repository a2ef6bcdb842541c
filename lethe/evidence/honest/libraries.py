"""Rows of published kernel libraries: Liger-Kernel and flash-linear-attention against plain torch.

* Candidates call the library's public function (Triton, on a GPU only); references are the house corpus's own
  or those of `operators`, written by us from the libraries' documentation.
* Licences: Liger-Kernel BSD-2-Clause, flash-linear-attention MIT; neither is part of this repository. Rows
  exist only where the package can be imported.
* Left out: flash-linear-attention's chunked forms, whose products are TF32 by the library's declared default.
* Row id: ``<package>__<function>``.

The libraries are in wide use, but nobody has proved them: a rejection here is first of all a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from lethe.audit import house
from lethe.audit.corpora import Row
from lethe.audit.textio import source_of
from lethe.evidence.honest import operators
from lethe.evidence.specimens import Kind, specimen
from lethe.verifier.problem import Candidate, Problem

NAME = "libraries"


@dataclass(frozen=True)
class Twin:
    """One function of a library and the reference that it must agree with."""

    function: str
    package: str
    imports: str
    reference: str
    """Name of a house problem or of an entry of `operators.REFERENCES`."""
    call: str
    """Body of forward: the arguments are those of the reference."""
    family: str

    @property
    def body(self) -> str:
        arguments = ", ".join(("self", *_ARGUMENTS[self.reference]))
        return (
            f"\n\nfrom {self.imports} import {self.function}\n\n\n"
            f'class ModelNew(Model):\n    """{self.package}: {self.function}."""\n\n'
            f"    def forward({arguments}):\n        {self.call}\n"
        )


_ARGUMENTS: dict[str, Sequence[str]] = {
    "norm_rmsnorm": ("x",),
    "norm_layernorm": ("x",),
    "norm_groupnorm": ("x",),
    "norm_l2_rows": ("x",),
    "softmax_row": ("x",),
    "fused_swiglu": ("a", "b"),
    "fused_add_rmsnorm": ("x", "residual"),
    "loss_cross_entropy": ("logits", "target"),
    "loss_kl_divergence": ("log_probs", "target"),
    **operators.ARGUMENTS,
}

_LIGER = "liger_kernel.transformers.functional"


def _liger(function: str, reference: str, call: str, family: str) -> Twin:
    return Twin(function, "liger_kernel", _LIGER, reference, f"return {call}", family)


def _fla(function: str, imports: str, reference: str, call: str, family: str) -> Twin:
    return Twin(function, "fla", imports, reference, f"return {call}", family)


TWINS: tuple[Twin, ...] = (
    _liger(
        "liger_rms_norm",
        "norm_rmsnorm",
        "liger_rms_norm(x, self.gain, self.eps, in_place=False)",
        "norm",
    ),
    _liger(
        "liger_layer_norm",
        "norm_layernorm",
        "liger_layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)",
        "norm",
    ),
    _liger(
        "liger_group_norm",
        "norm_groupnorm",
        "liger_group_norm(x, self.norm.weight, self.norm.bias, self.norm.num_channels, "
        "self.norm.num_groups, self.norm.eps)",
        "norm",
    ),
    _liger(
        "liger_fused_add_rms_norm",
        "fused_add_rmsnorm",
        "liger_fused_add_rms_norm(x, residual, self.gain, self.eps, in_place=False)",
        "fused",
    ),
    _liger("liger_softmax", "softmax_row", "liger_softmax(x)", "softmax"),
    _liger("liger_swiglu", "fused_swiglu", "liger_swiglu(a, b)", "fused"),
    _liger("liger_geglu", "geglu_tanh", "liger_geglu(a, b)", "fused"),
    _liger("liger_relu_squared", "relu_squared", "liger_relu_squared(x)", "activation"),
    _liger("liger_dyt", "dynamic_tanh", "liger_dyt(x, self.alpha, self.gamma, self.beta)", "norm"),
    _liger("liger_rope", "rope_full", "liger_rope(q, k, self.cos, self.sin)", "fused"),
    _liger("liger_cross_entropy", "loss_cross_entropy", "liger_cross_entropy(logits, target)", "loss"),
    _liger(
        "liger_kl_div",
        "loss_kl_divergence",
        'liger_kl_div(log_probs, target, reduction="batchmean")',
        "loss",
    ),
    _liger("liger_jsd", "jensen_shannon", "liger_jsd(log_q, log_p)", "loss"),
    _liger("liger_tvd", "total_variation", 'liger_tvd(p, q, reduction="batchmean")', "loss"),
    _fla(
        "rms_norm",
        "fla.modules.norm.layernorm",
        "norm_rmsnorm",
        "rms_norm(x, self.gain, None, eps=self.eps)",
        "norm",
    ),
    _fla(
        "layer_norm",
        "fla.modules.norm.layernorm",
        "norm_layernorm",
        "layer_norm(x, self.norm.weight, self.norm.bias, eps=self.norm.eps)",
        "norm",
    ),
    _fla("l2_norm", "fla.modules.norm.l2norm", "l2_rows_inside", "l2_norm(x, self.eps)", "norm"),
    _fla("swiglu", "fla.modules.activations", "fused_swiglu", "swiglu(a, b)", "fused"),
    _fla("fused_recurrent_hgrn", "fla.ops.hgrn", "hgrn", "fused_recurrent_hgrn(x, g)[0]", "scan"),
    _fla(
        "fused_recurrent_linear_attn",
        "fla.ops.linear_attn",
        "linear_attention",
        "fused_recurrent_linear_attn(q, k, v, normalize=False)[0]",
        "attention",
    ),
    _fla(
        "fused_recurrent_retention",
        "fla.ops.retention",
        "retention",
        "fused_recurrent_retention(q, k, v)[0]",
        "attention",
    ),
    _fla(
        "fused_recurrent_simple_gla",
        "fla.ops.simple_gla",
        "gated_by_head",
        "fused_recurrent_simple_gla(q, k, v, g)[0]",
        "attention",
    ),
    _fla(
        "fused_recurrent_gla",
        "fla.ops.gla",
        "gated_by_key",
        "fused_recurrent_gla(q, k, v, gk)[0]",
        "attention",
    ),
    _fla(
        "fused_recurrent_delta_rule",
        "fla.ops.delta_rule",
        "delta_rule",
        "fused_recurrent_delta_rule(q, k, v, beta)[0]",
        "attention",
    ),
    _fla(
        "fused_recurrent_gated_delta_rule",
        "fla.ops.gated_delta_rule",
        "gated_delta_rule",
        "fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta)[0]",
        "attention",
    ),
)


def rows(corpus: str) -> tuple[list[Row], list[str]]:
    """Rows of the packages that can be imported here, and a note for each that cannot; imports neither."""
    found, notes = [], []
    for package in dict.fromkeys(t.package for t in TWINS):
        twins = [t for t in TWINS if t.package == package]
        if find_spec(package) is None:
            notes.append(f"{package}: {len(twins)} rows are left out: the package is not installed")
            continue
        found += [_row(corpus, twin) for twin in twins]
    return found, notes


def problem_of(twin: Twin) -> Problem:
    """The reference of a row."""
    if twin.reference in operators.REFERENCES:
        return Problem(twin.reference, operators.REFERENCES[twin.reference])
    path = f"problems/{twin.reference}.py"
    return Problem(twin.reference, source_of(house.default_folder() / path, "honest"), path=path)


def _row(corpus: str, twin: Twin) -> Row:
    problem = problem_of(twin)
    name = f"{twin.package}__{twin.function}"
    return specimen(
        name,
        Kind.HONEST,
        problem,
        Candidate(name, problem.source.rstrip() + twin.body, "library"),
        corpus=corpus,
        family=twin.family,
        language="library",
        transform=twin.package,
        what=f"{twin.function} of {twin.package}",
    )
