# %% [markdown]
# # Sensitivity: mutants of honest kernels
#
# One edit each: a dropped mask, a wrong axis, a narrower accumulator. Which gate kills which edit, and what the
# usual check (five trials of `allclose`) kills among the same mutants. Equivalent mutants were found by comparing
# outputs bit for bit on many draws, never by the gates.

# %% tags=["parameters"]
# What this build judged, and the record of the full run.
lines = "data/results/evidence/mutants.jsonl"
recorded = "data/measured/cpu/mutants_audit.json"
# The usual check on the same mutants, recorded.
check = "data/measured/cpu/mutants_check.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe import plotting
from lethe.evidence.mutants import record, report
from lethe.paper import evidence, evidence_tables
from lethe.paper.glue import Glue, count
from lethe.paper.tables import interval, rate

glue = Glue("sensitivity", results=results, pages=pages, figures=figures)
found = evidence.gather(lines, recorded)
df = report.frame(found.lines, record.recorded(), evidence.samples(check))
rates = report.rates(df)
print(found.origin)
for name, share in rates.items():
    print(f"{name}: {share}")

# %% [markdown]
# ## Kill rates

# %%
glue.table(
    "rates",
    evidence_tables.kill_rates(rates),
    caption=f"Mutants killed, {found.origin}. Intervals are Wilson 95%.",
)

# %% [markdown]
# ## Which gate kills which edit

# %%
kills = report.matrix(df)
glue.table(
    "operators",
    evidence_tables.operators(kills),
    caption="Mutation operators: mutants, equivalent ones, and those killed.",
)

# %%
glue.figure("matrix", plotting.kill_matrix(kills, report.COLUMNS))

# %% [markdown]
# ## Survivors and equivalents

# %%
glue.table(
    "survivors",
    evidence_tables.survivors(report.survivors(df)),
    caption="Mutants that no gate rejected and that are not known to be equivalent.",
)

# %%
glue.table(
    "equivalents",
    evidence_tables.equivalents(df),
    caption="Equivalent mutants, each with its reason.",
)

# %%
verifier = rates["verifier, equivalents left out"]
counted = rates["verifier, equivalents counted as survivors"]
glue.number("mutants", count(len(df)))
glue.number("bases", count(df["base"].nunique()))
glue.number("operators", count(df["operator"].nunique()))
glue.number("equivalent", evidence_tables.equivalence(df))
glue.number("killed", count(verifier.killed))
glue.number("of", count(verifier.of))
glue.number("rate", rate(verifier.rate))
glue.number("interval", interval(*verifier.interval))
glue.number("rate_counted", rate(counted.rate))
glue.number("survivors", count(len(report.survivors(df))))
loose = rates.get("allclose 0.01, equivalents left out")
tight = rates.get("allclose 0.0001, equivalents left out")
glue.number("check", evidence_tables.usual_check(loose, tight))
glue.number("here", count(found.here))
glue.number("agreement", found.agreement)
glue.number("origin", found.origin)
glue.close()
