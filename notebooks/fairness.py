# %% [markdown]
# # Fairness: what must never be charged
#
# For each of the rules, an innocent kernel (or situation) that passes with the rule and is convicted without it. The
# switch exists only in the tests; the workflow ran them and this page tabulates what they wrote. Then: every legal
# order of summation against the bands.

# %% tags=["parameters"]
# What the tests of the rules wrote, one JSON line for each.
report = "data/results/evidence/fairness.jsonl"
# The longest sum: a power of two up to 262,144.
longest = 262144
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe.evidence import fairness, summation
from lethe.paper import evidence_tables
from lethe.paper.glue import Glue, count

glue = Glue("fairness", results=results, pages=pages, figures=figures)
rules = fairness.table(report)
print(len(rules), "rules shown")

# %%
glue.table(
    "rules",
    evidence_tables.fairness(rules),
    caption="Each fairness rule: the innocent that needs it, what the verifier says with the rule, and what it "
    "says with the rule switched off.",
)

# %% [markdown]
# ## Legal orders of summation
# How much of the bound each order uses at worst; above one the order is rejected.

# %%
cases = summation.legal_orders(
    sizes=[n for n in summation.SIZES if n <= longest]
)
summation.summary(cases, by="order")

# %%
glue.table(
    "summation",
    evidence_tables.summation(summation.summary(cases, by="inputs")),
    caption="Legal orders of summation against the bands of both profiles, by kind of input: sums, means and dot "
    "products in three dtypes. A ratio above one means that a legal order is rejected.",
)

# %%
glue.number("rules", count(len(rules)))
glue.number("sums", count(len(cases)))
glue.number("longest", count(max(c.n for c in cases)))
glue.number("derived_rejected", count(sum(c.rejected for c in cases)))
glue.number("paper_rejected", count(sum(c.rejected_by_paper for c in cases)))
glue.close()
