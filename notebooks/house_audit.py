# %% [markdown]
# # The house audit
#
# From the audit's lines (one verdict per kernel) to the tables and figures of the chapter *The audit*. Nothing is
# judged here; the workflow ran the audit before. Every rate carries its 95% Wilson interval, and everything
# published is labelled so.

# %% tags=["parameters"]
# The merged audit, and the manifest of the corpus that it judged.
lines = "data/results/audit/house.jsonl"
manifest = "data/corpus/house/manifest.json"
# The same corpus as a GPU judged it, recorded with its provenance.
recorded = "data/measured/h200/house_audit.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from pathlib import Path

from lethe import plotting
from lethe.audit import report
from lethe.paper import tables
from lethe.paper.glue import Glue

glue = Glue("house_audit", results=results, pages=pages, figures=figures)
df = report.load(lines)
print(len(df), "rows,", len(report.denominator(df)), "in the denominator")

# %% [markdown]
# ## Acceptance funnel

# %%
glue.table(
    "funnel",
    tables.funnel_table(df),
    caption="Acceptance funnel of the house corpus, measured here.",
)

# %%
figure = plotting.funnel(
    tables.funnel(df),
    tables.published_funnel(),
    titles=(
        "house corpus, measured here",
        "drkernel corpus, published (B200)",
    ),
)
glue.figure("funnel", figure)
# %% [markdown]
# ## By gate
# Black is tolerance-free. Gates marked † are reported but carry no weight in the published headline.

# %%
glue.table(
    "gates",
    tables.gates_table(df),
    caption="Outcome of each gate on accepted kernels, measured here on the "
    "house corpus; last column published. † set aside in the published "
    "headline.",
)

# %%
glue.figure("gates", plotting.gate_rates(tables.gates(df)))
# %% [markdown]
# ## By operator class

# %%
glue.table(
    "classes",
    tables.classes_table(df),
    caption="Accepted kernels that break a contract, by operator class, "
    "measured here; last two columns published for drkernel (B200).",
)

# %%
glue.figure("classes", plotting.class_rates(report.class_table(df)))
# %% [markdown]
# ## EXC-01 by mechanism

# %%
glue.table(
    "mechanisms",
    tables.mechanisms_table(df),
    caption="How accepted kernels break EXC-01, measured here on the house "
    "corpus.",
)

# %%
mechanisms = report.exc01_mechanisms(df)
figure = plotting.counts(
    [tables.words(m) for m in mechanisms["mechanism"]],
    list(mechanisms["rows"]),
    xlabel="kernels",
    tolerance_free=True,
)
glue.figure("mechanisms", figure)
# %% [markdown]
# ## The same corpus on a GPU
# Recorded, not run here. The Triton kernels of the whole corpus, compiled, at the same rules.

# %%
glue.table(
    "recorded",
    tables.recorded_table(df, Path(recorded)),
    caption=tables.recorded_caption(Path(recorded)),
)

# %% [markdown]
# ## The tolerance-free floor, and how it moves

# %%
glue.table(
    "floor",
    tables.floor_table(df),
    caption="The tolerance-free floor and its variants, measured here on the "
    "house corpus; last column published.",
)

# %% [markdown]
# ## How rows ended

# %%
glue.table(
    "statuses",
    tables.statuses_table(df),
    caption="Where verdicts ended, measured here; rows that are not decided "
    "are outside the denominator.",
)

# %% [markdown]
# ## Numbers for the prose

# %%
for name, text in {
    **tables.corpus(Path(manifest)),
    **tables.headline(df),
}.items():
    glue.number(name, text)
glue.close()
glue.numbers
