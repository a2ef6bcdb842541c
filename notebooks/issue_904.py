# %% [markdown]
# # Issue 904 without a Blackwell GPU
#
# The official Mamba-3 backward, compiled over its whole tuning space. The sources of mamba-ssm are downloaded, or read
# from a path; without either, and by default in the book, the committed record is shown.

# %% tags=["parameters"]
# Where mamba-ssm is: "" shows the record, "download" asks the package index, anything else is a path to the source archive,
# an unpacked copy or a checkout.
official = ""
# Architectures to compile for when the sources are at hand.
targets = [100, 90]
recorded = "data/measured/cpu/issue_904.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
import tempfile
from pathlib import Path

from lethe import plotting
from lethe.evidence import issue_904, issue_904_res02
from lethe.kernels.mamba3 import official as sources
from lethe.paper import evidence, kernel_tables
from lethe.paper.glue import Glue, count

glue = Glue("issue_904", results=results, pages=pages, figures=figures)
record = evidence.load(recorded)
origin, rows = "not measured yet", []
if record is not None:
    origin, rows = evidence.origin(record), record.samples
if official:
    try:
        with tempfile.TemporaryDirectory() as folder:
            where = (
                sources.fetch(Path(folder))
                if official == "download"
                else Path(official)
            )
            rows = issue_904.compiled(where, targets)
        origin = "compiled by this build"
    except sources.OfficialMissing as missing:
        print(missing, "-- the committed record is shown instead")
print(len(rows), "configurations,", origin)

# %% [markdown]
# ## Columns of tensor memory
# The limit is 512. ✗ marks what Triton's own loader refuses.

# %%
glue.table(
    "columns",
    kernel_tables.columns_by_version(rows, "sm_100"),
    caption="Tensor-memory columns of the official backward on sm_100, by pipeline stages, warps and version of "
    f"Triton; ✗ does not load; two values where the limit of registers changes them; {origin}.",
)

# %%
glue.table(
    "targets",
    kernel_tables.loading_by_target(rows),
    caption="What the official tuning space compiles to, by architecture: columns of tensor memory, most shared "
    "memory, configurations that the loader refuses for either, and those that are a single trap; "
    f"{origin}.",
)

# %%
there = [r for r in rows if r["target"] == "sm_100" and not r.get("error")]
glue.figure("columns", plotting.tensor_memory(there, issue_904.COLUMNS))

# %% [markdown]
# ## RES-02 and Triton's loader
# RES-02 must refuse exactly what cannot load.

# %%
glue.table(
    "agreement",
    kernel_tables.agreement_table(rows),
    caption="Configurations by what Triton's loader and RES-02 say of them; RES-02 was asked by this build.",
)

# %%
counts = issue_904_res02.agreement(rows)
glue.number("configurations", count(len(rows)))
space = {(r["num_stages"], r["num_warps"], r["maxnreg"]) for r in rows}
glue.number("space", count(len(space)))
glue.number("both_refuse", count(counts["both refuse"]))
glue.number(
    "disagree",
    count(counts["only the loader refuses"] + counts["only RES-02 refuses"]),
)
glue.number("versions", ", ".join(sorted({r["triton"] for r in rows})))
glue.number("origin", origin)
refused = [r for r in there if issue_904.refused(r)]
glue.number(
    "traps", f"{sum(r['trap'] for r in refused):,} of {len(refused):,}"
)
stacks = [r["stack_bytes"] for r in there if r["num_warps"] == 2]
glue.number(
    "stack",
    f"{min(stacks):,} to {max(stacks):,} bytes"
    if stacks
    else "not measured yet",
)
control = [r for r in rows if r["target"] == "sm_90" and not r.get("error")]
glue.number(
    "control_refused",
    f"{sum(map(issue_904.refused, control)):,} of {len(control):,}",
)
worst = {
    v: max(r["tmem_columns"] for r in there if r["triton"] == v)
    for v in sorted({r["triton"] for r in there})
}
glue.number(
    "worst",
    ", ".join(f"{c} (Triton {v})" for v, c in worst.items())
    or "not measured yet",
)
glue.close()
glue.numbers
