# %% [markdown]
# # Is the referee right? The summary
#
# What each way of checking rejects of what is wrong (mutants) and of what is honest, and whether verdicts repeat.

# %% tags=["parameters"]
# Honest candidates and mutants: this build's lines and the records of the full runs, in both profiles.
honest = "data/results/evidence/honest.jsonl"
mutants = "data/results/evidence/mutants.jsonl"
measured = "data/measured/cpu"
gpu = "data/measured/h200"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from pathlib import Path

from lethe import plotting
from lethe.evidence.mutants import record
from lethe.paper import evidence, evidence_tables
from lethe.paper.glue import Glue

glue = Glue("referee", results=results, pages=pages, figures=figures)
measured, gpu = Path(measured), Path(gpu)

# %% [markdown]
# ## Ways to check, on the same mutants and honest candidates
# A check of which neither this build nor a record holds rows is left out.

# %%
checks = evidence.samples(measured / "mutants_check.json")
spared = evidence.samples(measured / "honest_check.json")
sides = {
    "lethe, derived": (
        evidence.gather(honest, measured / "honest_audit.json").lines,
        evidence.gather(mutants, measured / "mutants_audit.json").lines,
    ),
    "lethe, paper": (
        evidence.samples(measured / "honest_paper_audit.json"),
        evidence.samples(measured / "mutants_paper_audit.json"),
    ),
}
known = record.recorded()
points = evidence_tables.operating_points(sides, known, checks, spared)
glue.table(
    "points",
    evidence_tables.points(points),
    caption="What each check rejects of the non-equivalent mutants, and of the honest candidates. Mutants: Wilson "
    "95% intervals; honest candidates: the upper end of the exact 95% interval.",
)

# %%
glue.figure("points", plotting.operating_points(points))

# %% [markdown]
# ## Do verdicts repeat?

# %%
stability = {
    "CPU, whole house corpus": evidence.samples(measured / "stability.json"),
    "H200, stratified rows": evidence.samples(gpu / "stability.json"),
}
glue.table(
    "stability",
    evidence_tables.stability(stability),
    caption="The same rows judged again in another order and under other load: canonical verdicts compared byte "
    "by byte.",
)

# %% [markdown]
# ## What the evidence costs

# %%
kinds = {
    "red team": "redteam_audit",
    "honest candidates": "honest_audit",
    "mutants": "mutants_audit",
    "mutants, published profile": "mutants_paper_audit",
    "honest candidates, published profile": "honest_paper_audit",
    "controls": "controls_audit",
}
audits = {
    f"{where}, {kind}": evidence.samples(folder / f"{name}.json")
    for where, folder in (("CPU", measured), ("H200", gpu))
    for kind, name in kinds.items()
}
glue.table(
    "cost",
    evidence_tables.cost(audits),
    caption="The recorded audits of known rows: wall times of their rows added up, which several workers share.",
    align=("l", *"rrrr"),
)

# %%
glue.close()
