# %% [markdown]
# # Specificity: honest candidates by the hundred
#
# Programs that keep the contract by construction: a compiler's output for every reference, the reference in other
# layouts, split, vectorised, decomposed, in wider precision. A rejection is the verifier's mistake until it is explained.

# %% tags=["parameters"]
# What this build judged, and the records of the full runs.
lines = "data/results/evidence/honest.jsonl"
recorded = "data/measured/cpu/honest_audit.json"
gpu = "data/measured/h200/honest_audit.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe.evidence.honest import report
from lethe.paper import evidence, evidence_tables
from lethe.paper.glue import Glue, count

glue = Glue("specificity", results=results, pages=pages, figures=figures)
found = evidence.gather(lines, recorded)
cpu = report.summarise(found.lines)
on_gpu = report.summarise(evidence.samples(gpu))
print(found.origin, "-", cpu.rate)
print("H200 -", on_gpu.rate)

# %% [markdown]
# ## By transform

# %%
glue.table(
    "transforms",
    evidence_tables.specificity(cpu, on_gpu),
    caption=f"Honest candidates rejected, by how they were made: on a CPU ({found.origin}) and on an H200. "
    "Bounds are the upper ends of exact 95% intervals.",
)

# %% [markdown]
# ## Every rejection, and what could not be decided

# %%
cpu.rejections()

# %%
on_gpu.rejections()

# %%
cpu.errors()

# %%
glue.table(
    "rejections",
    evidence_tables.rejections(cpu, on_gpu),
    caption="Every rejection of an honest candidate, and the reason that reading it found.",
)

# %%
glue.number("cpu", evidence_tables.spared(cpu.rate))
glue.number("gpu", evidence_tables.spared(on_gpu.rate))
glue.number("here", count(found.here))
glue.number("agreement", found.agreement)
glue.number("origin", found.origin)
glue.close()
