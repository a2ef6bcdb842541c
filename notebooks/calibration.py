# %% [markdown]
# # Calibration of the bands
#
# For every gate with a band, on several operators: what an honest kernel measures, where the threshold lies, and the
# smallest injected relative error that is rejected, found by bisection through the judge itself.

# %% tags=["parameters"]
# What this build measured (a few operators), and the record of all of them.
here = "data/results/evidence/calibration.jsonl"
recorded = "data/measured/cpu/calibration.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe import plotting
from lethe.audit import report as audit_report
from lethe.evidence.calibration import run
from lethe.paper import evidence, evidence_tables
from lethe.paper.glue import Glue, count

glue = Glue("calibration", results=results, pages=pages, figures=figures)
record = evidence.load(recorded)
live = run.read(here)
rows = record.samples if record is not None else live
origin = (
    evidence.origin(record)
    if record is not None
    else "measured by this build"
)
print(len(live), "rows here,", len(rows), origin)

# %% [markdown]
# ## Margins

# %%
margins = evidence_tables.calibration(rows)
glue.table(
    "margins",
    margins,
    caption=f"Margins of the derived bands, {origin}: threshold over an honest kernel's own metric, the "
    "smallest injected relative error that is rejected, and that onset over the honest error; the worst of all "
    "patterns. A margin below two is called thin.",
)

# %%
published = audit_report.published()["calibration"]["gates"]
marks = [
    r
    for r in rows
    if r["status"] == "measured"
    and r["profile"] == "derived"
    and r["pattern"] == "uniform"
]
glue.figure("bands", plotting.calibration(marks, published))

# %% [markdown]
# ## The carry of a reduction
# PRC-02 on sums and softmaxes of growing length: honest float32 carries against float16 and bfloat16 ones.

# %%
glue.table(
    "carry",
    evidence_tables.carry(rows),
    caption=f"PRC-02 by length of the reduction, {origin}: the statistic of a float32, a bfloat16 and a float16 "
    "carry, and the threshold.",
)

# %%
glue.number("rows", count(len(rows)))
glue.number("operators", count(len({r["operator"] for r in rows})))
glue.number("thin", count(int(margins["thin"].sum())))
glue.number("combinations", count(len(margins)))
glue.number("origin", origin)
glue.close()
