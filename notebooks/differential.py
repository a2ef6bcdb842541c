# %% [markdown]
# # Against KernelBench's own check
#
# The rows of the campaign went through KernelBench's `eval_kernel_against_ref` at two revisions, as their own code runs it
# and as a re-implementation for machines without it. Here: do the two implementations agree, what does the check accept
# that breaks a contract, and what did reading rows by hand find?

# %% tags=["parameters"]
# Folders of recorded measurements, the first that holds the campaign is taken.
measured = "data/measured/h200,data/measured/cpu"
# The rows that were read by hand, with their classes.
review = "data/review/rigor_gap.json"
mistakes = "data/review/mistakes.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
import json
from pathlib import Path

from lethe import plotting
from lethe.audit import review as reading
from lethe.audit.measured import choose
from lethe.paper import differential_tables as tables
from lethe.paper.glue import Glue, count

glue = Glue("differential", results=results, pages=pages, figures=figures)
run = choose([Path(folder) for folder in measured.split(",")])
origin = run.origin("dlblas_differential", "cuda_l1_differential")
audit, checks = run.audit("dlblas_accepted"), run.checks("dlblas")
by = tables.judge_of(checks)
print(origin, len(checks), "checks; the tables use", by)

# %% [markdown]
# ## Theirs and ours

# %%
glue.table(
    "agreement",
    tables.implementations(run.checks("dlblas", "cuda_l1")),
    caption=f"KernelBench's own code and the re-implementation on the same rows, {origin}.",
)

# %% [markdown]
# ## What the check accepts

# %%
glue.table(
    "cells",
    tables.contingency(audit, checks, by),
    caption=f"The verifier against KernelBench's check ({by}) on accepted DLBlas kernels, {origin}.",
)

# %%
cuda_l1 = run.checks("cuda_l1")
glue.table(
    "cuda_l1_cells",
    tables.contingency(
        run.audit("cuda_l1"), cuda_l1, tables.judge_of(cuda_l1)
    ),
    caption=f"The same for CUDA-L1, H100 set, {origin}.",
)

# %% [markdown]
# ## The load-bearing cell, and its reverse

# %%
cell = tables.in_cell(audit, checks, by)
glue.table(
    "cell",
    cell,
    caption=f"Kernels that KernelBench's check accepts and a contract rejects, by gate, {origin}.",
)

# %%
gates, values = tables.cell_counts(audit, checks, by)
glue.figure(
    "cell",
    plotting.counts(
        gates,
        values,
        xlabel="kernels in the load-bearing cell",
        tolerance_free=False,
    ),
)

# %%
glue.table(
    "reverse",
    tables.reverse(audit, checks, by),
    caption=f"Every kernel that KernelBench's check rejects although it keeps every contract, {origin}.",
)

# %% [markdown]
# ## Read by hand

# %%
rows = reading.load(Path(review)) if Path(review).is_file() else []
glue.table(
    "review_classes",
    tables.review_classes(rows),
    caption="Rows read by hand, by class; last column published (31 rows).",
)

# %%
glue.table(
    "review_rows",
    tables.review_rows(rows),
    caption="Every row that was drawn, and what reading it found.",
)

# %%
both = run.checks("dlblas", "cuda_l1")
drawn = (
    reading.draw(
        run.audit("dlblas_accepted", "cuda_l1"), both, implementation=by
    )
    if len(both)
    else []
)
for sentence in reading.problems(drawn, rows):
    print(sentence)

# %%
glue.number("origin", origin)
glue.number("checks", count(len(checks)))
glue.number(
    "by",
    {"theirs": "KernelBench's own code", "ours": "the re-implementation"}[by],
)
wrong = json.loads(Path(mistakes).read_text())["mistakes"]
glue.table(
    "mistakes",
    tables.mistakes(wrong),
    caption="Convictions of this verifier that reading showed to be wrong, before they were recorded.",
)
glue.number("mistakes", count(len(wrong)))
glue.number("review", tables.review_clause(rows))
glue.number("unread", count(len(reading.problems(drawn, rows))))
glue.close()
glue.numbers
