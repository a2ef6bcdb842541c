# %% [markdown]
# # The battery on one operator
#
# Twelve contracts, and three versions of a softmax: one that keeps them, and two that differ from it in one
# line. All three are accepted by the usual check at the shape in the file.

# %% tags=["parameters"]
# Where the kernels run: cpu (Triton's interpreter), cuda or auto.
device = "cpu"
# Every draw is derived from it.
seed = 0
# Fewer adversarial draws per gate; the same gates.
quick = True
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from pathlib import Path

import pandas as pd

import lethe
from lethe.paper import tables
from lethe.paper.glue import Glue
from lethe.verifier.catalog import CONTRACTS

glue = Glue("battery", results=results, pages=pages, figures=figures)

# %% [markdown]
# ## The twelve contracts
# `CONTRACTS` holds all eight parts of each; here are four of them.

# %%
columns = ["gate", "name", "channel", "the kernel guarantees that"]
rows = [(c.identifier, c.name, c.channel, c.postcondition) for c in CONTRACTS]
pd.DataFrame(rows, columns=columns).style.hide(axis="index")

# %% [markdown]
# ## Three softmaxes
# The reference draws 16 rows of 256 normal numbers. This is the honest kernel.

# %%
examples = Path("notebooks/examples")
reference = examples / "softmax.py"
kernels = {
    "honest": examples / "softmax_honest.py",
    "padding in the sum": examples / "softmax_tail.py",
    "NaN hidden": examples / "softmax_nan.py",
}
print(kernels["honest"].read_text())

# %% [markdown]
# The second reads `other=0.0` instead of minus infinity, so that lanes beyond the end of a row enter its sum. The third adds
# `x = tl.where(x == x, x, float("-inf"))`.
#
# ### What the usual check says

# %%
checks = {
    name: tables.usual_check(kernel, reference, device)
    for name, kernel in kernels.items()
}
accepted = {name: check.accepted for name, check in checks.items()}
pd.Series(accepted, name="accepted").to_frame()

# %% [markdown]
# ### What the contracts say

# %%
verdicts = {
    name: lethe.verify(
        kernel, reference, device=device, seed=seed, quick=quick
    )
    for name, kernel in kernels.items()
}
glue.table(
    "example",
    tables.verdict_table(verdicts, accepted),
    caption="Three versions of one softmax, gate by gate, measured here.",
)

# %% [markdown]
# ### Why
# The first finding of each gate that failed.

# %%
glue.table(
    "findings",
    tables.first_findings(verdicts),
    caption="What the failing gates found in the two altered softmaxes.",
)

# %%
glue.number("honest_failed", tables.failed(verdicts["honest"]))
glue.number("tail_failed", tables.failed(verdicts["padding in the sum"]))
glue.number("nan_failed", tables.failed(verdicts["NaN hidden"]))
glue.close()
