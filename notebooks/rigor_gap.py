# %% [markdown]
# # The rigor gap
#
# A recorded campaign over public corpora (`python -m lethe.audit.campaign`): from its verdict lines to every table and
# number of the chapter. Nothing is judged here, so a CPU suffices. Every rate carries its 95% Wilson interval and, because
# rows of one problem resemble each other, an interval by resampling problems. Published figures are labelled so.

# %% tags=["parameters"]
# Folders of recorded measurements, the first that holds the campaign is taken.
measured = "data/measured/h200,data/measured/cpu"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from pathlib import Path

from lethe import plotting
from lethe.audit import campaign, report
from lethe.audit.measured import choose
from lethe.paper import rigor_tables as tables
from lethe.paper import tables as common
from lethe.paper.glue import Glue, count

glue = Glue("rigor_gap", results=results, pages=pages, figures=figures)
run = choose([Path(folder) for folder in measured.split(",")])
origin = run.origin("dlblas_accepted_audit", "cuda_l1_audit")
accepted, rejected = (
    run.audit("dlblas_accepted"),
    run.audit("dlblas_rejected"),
)
cuda_l1 = run.audit("cuda_l1")
print(origin, len(accepted), len(rejected), len(cuda_l1))

# %% [markdown]
# ## The headline

# %%
glue.table(
    "headline",
    tables.headline({"dlblas": accepted, "cuda_l1": cuda_l1}),
    caption=f"Accepted kernels that break a contract, {origin}; last column published.",
)

# %% [markdown]
# ## DLBlas OpenEvolve, table by table

# %%
captions = {
    "funnel": "Acceptance funnel of the DLBlas corpus",
    "gates": "Outcome of each gate on accepted DLBlas kernels. † set aside in the headline of load-bearing gates",
    "classes": "Accepted DLBlas kernels that break a contract, by operator class",
    "mechanisms": "How accepted DLBlas kernels break EXC-01",
    "floor": "The tolerance-free floor on accepted DLBlas kernels, and how it moves",
    "channels": "Accepted DLBlas kernels by tolerance-free channel",
    "strips": "The headline without whatever may be contested",
    "statuses": "Where the verdicts about accepted DLBlas kernels ended",
}
for name, table in tables.of_corpus(accepted).items():
    shown = glue.table(name, table, caption=f"{captions[name]}, {origin}.")
tables.of_corpus(accepted)["gates"]

# %% [markdown]
# ## CUDA-L1
# A row without a kernel of its own has its own status; it is no contract failure.

# %%
of_cuda_l1 = tables.of_corpus(cuda_l1)
glue.table(
    "cuda_l1_gates",
    of_cuda_l1["gates"],
    caption=f"Outcome of each gate on CUDA-L1, H100 set, {origin}.",
)

# %%
glue.table(
    "cuda_l1_statuses",
    of_cuda_l1["statuses"],
    caption=f"Where the verdicts about CUDA-L1, H100 set, ended, {origin}.",
)

# %% [markdown]
# ## Rows that their own harness rejected

# %%
glue.table(
    "sensitivity",
    tables.sensitivity(rejected),
    caption=f"What the verifier makes of kernels that the corpus's own harness rejected, {origin}.",
)

# %% [markdown]
# ## The same rows under the published formula, and in another environment

# %%
glue.table(
    "profiles",
    tables.paired(
        accepted, run.audit("dlblas_paper"), ("derived", "published formula")
    ),
    caption=f"The same rows in the profiles derived and paper, {origin}.",
)

# %%
stack = run.record("dlblas_stack_audit")
other = (
    f"torch {stack.versions['torch']}, triton {stack.versions['triton']}"
    if stack
    else "another stack"
)
glue.table(
    "stacks",
    tables.paired(
        accepted, run.audit("dlblas_stack"), ("the main stack", other)
    ),
    caption=f"The same rows in two environments, {origin}; the second is {other}.",
)

# %% [markdown]
# ## How the headline moves

# %%
glue.figure("moves", plotting.moving_rate(tables.rates(accepted)))

# %%
glue.figure("gates", plotting.gate_rates(common.gates(accepted)))

# %% [markdown]
# ## What it costs

# %%
glue.table(
    "times",
    tables.gate_times(run),
    caption=f"Where the wall time of a row goes, {origin}.",
)

# %%
glue.table(
    "throughput",
    tables.throughput(run),
    caption=f"What each step of the campaign took, {origin}.",
)

# %%
glue.table(
    "check",
    tables.against_check(run),
    caption=f"A verdict against KernelBench's five-trial check on the same rows, {origin}.",
)

# %% [markdown]
# ## What the published rows say about the published numbers

# %%
glue.table(
    "recomputed",
    tables.recomputed(),
    caption="The numbers that the paper printed of its audit, recomputed from its published row verdicts.",
)
glue.number("recomputed", tables.recomputed_clause())

# %% [markdown]
# ## Numbers for the prose

# %%
glue.number("origin", origin)
glue.number("rows", count(len(accepted)))
glue.number("judged", count(len(report.denominator(accepted))))
glue.number("rejected_rows", count(len(rejected)))
glue.number("cuda_l1_rows", count(len(cuda_l1)))
glue.number("any", tables.clause(accepted, "any contract"))
glue.number(
    "load_bearing", tables.clause(accepted, "load-bearing gates alone")
)
glue.number("floor", tables.clause(accepted, "tolerance-free floor"))
glue.number("cuda_l1_any", tables.clause(cuda_l1, "any contract"))
glue.number("cuda_l1_floor", tables.clause(cuda_l1, "tolerance-free floor"))
glue.number("criterion", common.rate(campaign.KILL_CRITERION))
glue.number(
    "claim", tables.verdict_on_claim(accepted, campaign.KILL_CRITERION)
)
glue.number("price", tables.price(run))
glue.number("check_ratio", tables.times_the_check(run))
glue.close()
glue.numbers
