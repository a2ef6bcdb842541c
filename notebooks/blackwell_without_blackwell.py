# %% [markdown]
# # Blackwell without Blackwell
#
# Kernels for sm_90a and sm_100a, as CuTe DSL and Triton compile them, executed on a CPU. First every recorded kernel
# under many schedules of its asynchronous work, then kernels broken on purpose, then the comparison with silicon.

# %% tags=["parameters"]
# Random schedules beside "early", "late" and "reverse".
seeds = 20
# How many broken kernels this build runs itself, spread over all.
mutants = 24
# Random schedules for a broken kernel.
mutant_seeds = 2
# The record of all of them, and of the comparison with a Hopper GPU.
recorded = "data/measured/cpu/ptx_faults.json"
silicon = "data/measured/h200/ptx_silicon.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe.paper import evidence, ptx_measure, ptx_tables
from lethe.paper.glue import Glue, count
from lethe.ptx import injection, parse
from lethe.ptx.examples import load, names
from lethe.ptx.examples.execute import agree
from lethe.ptx.lint import lint

glue = Glue(
    "blackwell_without_blackwell",
    results=results,
    pages=pages,
    figures=figures,
)

# %% [markdown]
# ## Every kernel, many schedules, one answer
# The same inputs under each schedule; outputs are compared bit by bit, and the first with an oracle in float64.

# %%
schedules = ["early", "late", "reverse", *range(seeds)]
found = {name: (load(name), agree(load(name), schedules)) for name in names()}
glue.table(
    "validation",
    ptx_tables.validation(found),
    caption="Recorded kernels in the emulator. Every kernel ran under all schedules; the answer is that of the "
    "first, as a share of the oracle's bound, unless a schedule differed.",
)

# %% [markdown]
# ## The published lifecycle defect
# Tensor memory allocated and relinquished once per GEMM: named by the static check, and a fault when executed.

# %%
defect = load("lifecycle_once_per_gemm")
for finding in lint(parse(defect.ptx))[defect.launch.kernel]:
    print(finding)

# %% [markdown]
# ## Broken on purpose
# One-line edits of working kernels; a sample here, all of them in the record.

# %%
live = ptx_measure.faults(injection.KERNELS, mutant_seeds, limit=mutants)
record = evidence.load(recorded)
rows = record.samples if record is not None else live
origin = (
    evidence.origin(record) if record is not None else "run by this build"
)
glue.table(
    "faults",
    ptx_tables.faults(rows),
    caption=f"One-line faults in working kernels, {origin}: how many give a wrong answer or hang when asynchronous "
    "work completes at once, how many more the checks and the adversarial schedules notice, how many the static "
    "check names, and how many are noticed in any way.",
)

# %% [markdown]
# ## Against silicon
# The same PTX, the same inputs, on a Hopper GPU and in the emulator.

# %%
comparison = evidence.load(silicon)
compared = list(comparison.samples) if comparison is not None else []
if compared:
    table = ptx_tables.silicon(compared)
    caption = (
        f"The same PTX on a GPU and in the emulator, {evidence.origin(comparison)}: equal elements of all outputs, "
        "the largest distance in units of the last place, and both errors as a share of the oracle's bound."
    )
else:
    table = ptx_tables.silicon([]).reindex(columns=["kernel", "equal"])
    caption = "The comparison with a GPU has not been recorded."
glue.table("silicon", table, caption=caption)

# %%
noticed = ptx_tables.counts(rows)
glue.number("kernels", count(len(found)))
glue.number("schedules", count(len(schedules)))
glue.number("agree", count(sum(not a.difference for _, a in found.values())))
glue.number(
    "right", count(sum(a.status == "right" for _, a in found.values()))
)
glue.number("mutants", count(len(rows)))
glue.number("origin", origin)
glue.number("answer", count(noticed["answer"]))
glue.number("checks", count(noticed["checks"]))
glue.number("schedule", count(noticed["schedules"]))
glue.number("lint", count(noticed["lint"]))
glue.number("any", count(noticed["any"]))
glue.number("here", count(len(live)))
glue.number("here_any", count(ptx_tables.counts(live)["any"]))
glue.number(
    "silicon",
    f"{sum(r['agrees'] for r in compared)} of {len(compared)} comparisons agree"
    if compared
    else "not recorded yet",
)
glue.close()
