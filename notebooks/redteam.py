# %% [markdown]
# # Red team
#
# Programs written to pass without doing the work. Each must be rejected by the gate it was written for; its honest
# twin, one line away, must keep every contract. The workflow judged a sample of them before; the full run is recorded.

# %% tags=["parameters"]
# What this build judged, and the record of the full run.
lines = "data/results/evidence/redteam.jsonl"
recorded = "data/measured/cpu/redteam_audit.json"
# The same corpus on a GPU.
gpu = "data/measured/h200/redteam_audit.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe import plotting
from lethe.evidence.redteam import NAMED, matrix
from lethe.paper import evidence, evidence_tables
from lethe.paper.glue import Glue, count

glue = Glue("redteam", results=results, pages=pages, figures=figures)
found = evidence.gather(lines, recorded)
counts = matrix.counts(found.lines)
print(found.origin, counts)

# %% [markdown]
# ## Which gate rejects which cheat
# A cell counts the operators on which the gate failed; a star marks the gate that the cheat was written for.

# %%
table = matrix.matrix(found.lines)
glue.table(
    "attacks",
    evidence_tables.attacks(matrix.by_attack(table)),
    caption=f"Red team: operators on which each gate rejects each attack, {found.origin}. "
    "★ marks the gate that the attack was written for.",
)

# %%
glue.figure("matrix", plotting.rejection_matrix(matrix.by_attack(table)))

# %% [markdown]
# ## Cheats that their own gate missed, and twins that are not clean
# Both tables should be empty.

# %%
table[~table["caught"].astype(bool)]

# %%
twins = matrix.twins(found.lines)
twins[~twins["clean"].astype(bool)]

# %% [markdown]
# ## On a GPU

# %%
on_gpu = evidence.samples(gpu)
gpu_counts = matrix.counts(on_gpu) if on_gpu else None
gpu_counts

# %%
for name in ("attacks", "cheats", "caught", "rejected", "twins", "clean"):
    glue.number(name, count(counts[name]))
glue.number("gpu", evidence_tables.caught(gpu_counts))
glue.number("named", count(len(NAMED)))
glue.number("here", count(found.here))
glue.number("agreement", found.agreement)
glue.number("origin", found.origin)
glue.close()
