# %% [markdown]
# # A state-space engine
#
# The contract of the Mamba-2 engine beside two others, the rules of its analyzer, the predictions of its design, a few
# cases in Triton's interpreter, its kernels executed from their PTX, and its accuracy and speed on a GPU. The last
# two are records, and where there is none the tables say so.

# %% tags=["parameters"]
# How many stress cases run here, in the interpreter.
cases = 2
# The kernels executed without a GPU, and the run on one.
emulated = "data/measured/cpu/ssd_emulated.json"
values = "data/measured/h200/ssd_accuracy.json"
promises = "data/measured/h200/ssd_checks.json"
speeds = "data/measured/h200/ssd_speed.json"
tuned = "data/measured/h200/ssd_tune.json"
gates = "data/measured/h200/ssd_controls.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from lethe import plotting
from lethe.audit import report
from lethe.evidence import ssd_api, ssd_check, ssd_here, ssd_predicted
from lethe.paper import evidence, ssd_tables
from lethe.paper.glue import Glue, count

glue = Glue("ssd_engine", results=results, pages=pages, figures=figures)
records = {
    name: evidence.load(path)
    for name, path in {
        "emulated": emulated,
        "values": values,
        "promises": promises,
        "speeds": speeds,
        "tuned": tuned,
        "gates": gates,
    }.items()
}
origins = {
    name: evidence.origin(r) if r else ssd_tables.MISSING
    for name, r in records.items()
}
glue.number("emulated_origin", origins["emulated"])
glue.number("values_origin", origins["values"])
glue.number("speeds_origin", origins["speeds"])
origins

# %% [markdown]
# ## The contract

# %%
glue.table(
    "contract",
    ssd_tables.contract(),
    caption="What three Mamba-2 operators promise: NVIDIA's pull request by its own description, mamba-ssm by its sources, "
    "and this engine.",
)

# %%
glue.table(
    "rules",
    ssd_tables.rules(),
    caption="What the analyzer asks of a graph. A graph that it declines gets the rule and the reason.",
)

# %%
glue.table(
    "interface",
    ssd_tables.interface(ssd_api.interface()),
    caption="Everything public of `lethe.kernels.ssd`, from its docstrings.",
)
glue.table(
    "operands",
    ssd_tables.operands(ssd_api.operands()),
    caption="Arguments of `ssd`; B batch, L tokens, H heads, P channels a head, G groups, N states.",
)

# %% [markdown]
# ## A few cases here
# In Triton's interpreter, small, against the float64 oracle.

# %%
live = ssd_here.here(cases)
glue.table(
    "here",
    ssd_tables.accuracy(live),
    caption="Stress cases in Triton's interpreter, small: the worst of output, final state and all gradients.",
)
glue.number("live", ssd_tables.held(live, "passed"))
glue.number("live_rms", ssd_tables.worst(live, 0))
glue.number("live_peak", ssd_tables.worst(live, 1))

# %% [markdown]
# ## Without a GPU

# %%
glue.table(
    "resources",
    ssd_tables.resources(records["emulated"]),
    caption="What each kernel needs at most over the compiled forms of four speed shapes, by target. Read early: "
    "registers of a tensor-memory load that are read before the wait in the text of the PTX.",
)

# %%
glue.table(
    "executed",
    ssd_tables.executed(records["emulated"]),
    caption="A small case, forward and backward, every launch executed from Triton's PTX on a CPU, against float64.",
)

# %%
glue.number("hopper", ssd_tables.outcome(records["emulated"], "sm_90"))
glue.number("blackwell", ssd_tables.outcome(records["emulated"], "sm_100"))
glue.number(
    "blackwell_unchecked",
    ssd_tables.outcome(records["emulated"], "sm_100", checks=False),
)

# %% [markdown]
# ## Accuracy and promises on a GPU

# %%
accurate = ssd_tables.by(records["values"], ssd_check.OURS)
official = ssd_tables.by(records["values"], ssd_check.THEIRS)
glue.table(
    "accuracy",
    ssd_tables.accuracy(accurate, official),
    caption="Stress cases on a GPU against float64: the worst of output, final state and all gradients.",
)
glue.number("accurate", ssd_tables.held(accurate, "passed"))
glue.number("worst_rms", ssd_tables.worst(accurate, 0))
glue.number("worst_peak", ssd_tables.worst(accurate, 1))

# %%
glue.table(
    "checks",
    ssd_tables.checks(records["promises"]),
    caption="What the engine promises beside values, on a GPU.",
)
glue.number("official_fails", ssd_tables.failures(official))

# %%
glue.table(
    "controls",
    ssd_tables.controls(records["gates"]),
    caption=f"The engine as a candidate before the twelve gates, {origins['gates']}. S1: forward, with bias, softplus, skip and "
    "gate. S2: backward, from an initial state, with every gradient and the final state among the outputs.",
)

# %% [markdown]
# ## Prediction and speed

# %%
rows = ssd_tables.timed(records["speeds"])
glue.table(
    "prediction",
    ssd_tables.prediction(rows),
    caption="Each launch at the first two shapes: bytes and operations from metadata, the longer of streaming and computing "
    "them, and what was measured.",
)
assumed = ssd_predicted.assumed()
glue.number("stream", assumed["stream"])
glue.number("tensor", assumed["tensor"])

# %%
glue.table(
    "speed",
    ssd_tables.speeds(rows),
    caption="Ours (chunk 64, bfloat16 checkpoints) and mamba-ssm's Triton operator at its best chunk, bfloat16, µs of device "
    "time in CUDA graphs of one process; above one, ours is faster.",
)

# %%
glue.table(
    "ways",
    ssd_tables.ways(rows),
    caption="The engine's own ways at the first shape, µs.",
)

# %%
glue.table(
    "host",
    ssd_tables.host(rows),
    caption="Host time to submit a call, µs: a prepared plan, the public operator, and forward and backward by autograd.",
)

# %%
glue.table(
    "official",
    ssd_tables.official_launches(rows),
    caption="Kernels of the official operator's forward and backward pass at its best chunk, at the first shape.",
)

# %%
published = report.published()["ssd_engine"]
glue.figure(
    "ratios",
    plotting.speed_ratios(
        {
            what: [
                (r["id"], q) for r in rows if (q := ssd_tables.ratio(r, what))
            ]
            for what in ("forward", "backward", "both")
        },
        [published["ungated_ratio"], published["gated_ratio"]],
        xlabel="time of mamba-ssm's operator at its best chunk over ours (published: both, on other hardware)",
    ),
)

# %%
found = {
    gated: next(
        (ssd_tables.ratio(r, "both") for r in rows if r["gated"] is gated),
        None,
    )
    for gated in (False, True)
}
shown = {
    gated: f"{q:.2f}" if q else ssd_tables.MISSING
    for gated, q in found.items()
}
glue.number("ratio_ungated", shown[False])
glue.number("ratio_gated", shown[True])
glue.number("target_ungated", f"{ssd_tables.TARGETS[False]:.2f}")
glue.number("target_gated", f"{ssd_tables.TARGETS[True]:.2f}")
glue.number("missed", ssd_tables.missed(rows))
searched = records["tuned"].samples if records["tuned"] is not None else []
glue.number(
    "searched",
    count(sum("median_us" in r for r in searched))
    if searched
    else ssd_tables.MISSING,
)
glue.close()
glue.numbers
