# %% [markdown]
# # One recurrence, seven models
#
# Which member keeps which gate, the oracles rung by rung, the precision plan, the native kernels as executed without a
# GPU, and their accuracy and speed on one. The first two parts are computed here; the others show records, and where
# there is none the tables say so.

# %% tags=["parameters"]
# Tokens and value channels of the ladder (d_k is 128), and tokens of the comparison with each member's definition.
length = 150
dv = 128
tokens = 40
# The precision plans, the kernels executed without a GPU, and the run on one.
plans = "data/measured/cpu/gdn_precision.json"
executed = "data/measured/cpu/gdn_emulated.json"
blackwell = "data/measured/cpu/gdn_blackwell.json"
values = "data/measured/h200/gdn_accuracy.json"
speeds = "data/measured/h200/gdn_speed.json"
bounds = "data/measured/h200/gdn_bounds.json"
trained = "data/measured/h200/gdn_training.json"
# The battery of gates on the seven members: on a GPU, and the same texts by the torch backend.
judged = "data/measured/h200/gdn_controls.json"
judged_here = "data/measured/cpu/gdn_controls.json"
# What was noted while building.
faults = "data/review/gdn_faults.json"
levers = "data/review/gdn_levers.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
import statistics
from importlib.util import find_spec

from lethe import plotting
from lethe.audit import report
from lethe.evidence import (
    gdn_gpu_training,
    gdn_ladder,
    gdn_training_judged,
    seed_noise,
    sequence_tasks,
)
from lethe.kernels.gdn.dispatch import CAPABILITY, INSTALLED
from lethe.kernels.gdn.precision import PINS
from lethe.paper import (
    evidence,
    gdn_blackwell_tables,
    gdn_bounds_tables,
    gdn_control_tables,
    gdn_speed_tables,
    gdn_tables,
)
from lethe.paper.glue import Glue, count

glue = Glue("one_recurrence", results=results, pages=pages, figures=figures)
records = {
    name: evidence.load(path)
    for name, path in {
        "plans": plans,
        "executed": executed,
        "blackwell": blackwell,
        "values": values,
        "speeds": speeds,
        "bounds": bounds,
        "trained": trained,
        "judged": judged,
        "judged_here": judged_here,
    }.items()
}
origins = {
    name: evidence.origin(r) if r else gdn_tables.MISSING
    for name, r in records.items()
}
origins

# %% [markdown]
# ## Seven members
# Each member is called by its own name; what reaches the general operator is looked at and named by its values.

# %%
glue.table(
    "reductions",
    gdn_tables.reductions(gdn_ladder.kept()),
    caption="What the operands of the general recurrence are in each member, and bytes of the backward pass for a chunk "
    "of 64 tokens and one head at d_k = d_v = 128: all that the three kernels move, and inputs and gradients alone.",
    align=("l", "l", "l", "l", "l", "l", "l", "r", "r"),
)

# %%
own = gdn_ladder.definitions(tokens)
glue.table(
    "definitions",
    gdn_tables.definitions(own),
    caption="Each member against its own definition in float64: output, final state and all gradients, the worst of "
    "them as a share of the largest value.",
)

# %% [markdown]
# ## The ladder

# %%
rungs = gdn_ladder.ladder(length, dv)
glue.table(
    "ladder",
    gdn_tables.ladder(rungs),
    caption=f"Gradients of GDN-2, each rung against the float64 rung below it, computed by this build: {length} tokens, "
    f"d_k 128, d_v {dv}, gates of every channel in [-1, 0], initial and final state. The largest error as a share of "
    "the largest value.",
    align=("l", "l", *"rrrrrrrr"),
)

# %% [markdown]
# ## The precision plan

# %%
for io, name in (("bf16", "bfloat16"), ("fp16", "float16")):
    glue.table(
        f"precision_{io}",
        gdn_tables.precision(records["plans"], io),
        caption=f"Plans for the operands, {name} inputs, {origins['plans']}: the worst error of each gradient in "
        f"thousandths over members, gates, keys and d_v; products relative to the cheapest plan; KiB that the stages "
        f"hand on for a chunk and head; whether every gradient is within {1e3 * PINS[io]:.0f} thousandths.",
        align=("l", *"rrrrrrrrr", "l"),
    )

# %% [markdown]
# ## Executed without a GPU
# The kernels as compiled for sm_90a, in `lethe.ptx`.

# %%
glue.table(
    "kernels",
    gdn_tables.kernels(records["executed"]),
    caption=f"The launches of a forward and a backward pass, {origins['executed']}: threads of a block, registers and "
    "spilled bytes a thread (stores and loads added up) as Triton's ptxas reports them for the same PTX, shared memory, "
    "warp instructions and asynchronous operations of the execution.",
)

# %%
cases = gdn_tables.samples(records["executed"])
glue.table(
    "executed",
    gdn_tables.emulated(records["executed"]),
    caption=f"The native kernels in the emulator, {origins['executed']}: three chunks, the last one ragged, initial and "
    "final state. Of all outputs and gradients the one that is nearest to its bound, in thousandths.",
)

# %%
glue.number("executed_passed", gdn_tables.passed(cases))
glue.number(
    "executed_schedules",
    count(max(r.get("schedules", 0) for r in cases))
    if cases
    else gdn_tables.MISSING,
)
glue.number(
    "compiler",
    "is installed"
    if find_spec("cutlass")
    else "is not installed, so nothing could be compiled again",
)
{name: name in INSTALLED for name in CAPABILITY}

# %% [markdown]
# ## The kernels for sm_100a
# The same stages with tcgen05 and tensor memory: their map, what they use, and their executions in `lethe.ptx`.

# %%
glue.figure(
    "tensor_memory",
    plotting.tensor_memory_map(
        gdn_blackwell_tables.ALLOCATED,
        gdn_blackwell_tables.REGIONS,
        gdn_blackwell_tables.RESIDENT,
    ),
)

# %%
there = records["blackwell"]
glue.table(
    "blackwell_resources",
    gdn_blackwell_tables.resources(there),
    caption=f"The kernels for sm_100a, {origins['blackwell']}: threads of a block, registers and spilled bytes a thread "
    "(stores and loads added up) as ptxas reports them, shared memory, columns of tensor memory, and what the static "
    "checks of its life find: violations, and questions that they leave undecided.",
)

# %%
glue.table(
    "blackwell_executed",
    gdn_tables.emulated(there),
    caption=f"The kernels for sm_100a in the emulator, {origins['blackwell']}: two heads, three chunks, the last one "
    "ragged, initial and final state. Schedules of the backward pass; of all outputs and gradients the one that is "
    "nearest to its bound, in thousandths.",
)
glue.number("blackwell_passed", gdn_tables.passed(gdn_tables.samples(there)))
glue.number("blackwell_schedules", gdn_blackwell_tables.most_schedules(there))
glue.number("blackwell_static", gdn_blackwell_tables.lifecycle(there))

# %% [markdown]
# ## Accuracy on a GPU

# %%
glue.table(
    "accuracy",
    gdn_tables.accuracy(records["values"]),
    caption=f"Accuracy on the GPU, {origins['values']}: for each kind of gates the result that is nearest to its bound, "
    "its error and that bound in thousandths. The bound is the pin, and half a unit in the last place where the "
    "result is stored in 16 bits.",
)

# %%
published = report.published()["gdn_backward"]
glue.figure(
    "accuracy",
    plotting.errors_and_pins(
        gdn_tables.error_points(records["values"], records["plans"]),
        sorted(PINS.values()),
        [
            published[name]
            for name in (
                "worst_rel_err_scalar",
                "worst_rel_err_channelwise",
                "dv128_save_forward_rel_err",
            )
        ],
    ),
)

# %%
glue.table(
    "checks",
    gdn_tables.checks(records["values"]),
    caption=f"Checks on the GPU, {origins['values']}.",
)
score = {
    kind: gdn_tables.passed(gdn_tables.samples(records["values"], kind))
    for kind in gdn_tables.CHECKS
}
glue.number("accurate", score["accuracy"])
glue.number("same_bits", score["bits"])
glue.number("graphs", score["graph"])
glue.number("red_zones", score["red zones"])
glue.number("worst", gdn_tables.worst(records["values"]))
glue.number(
    "run", gdn_tables.unfinished(records["values"], records["speeds"])
)
glue.number("pin_bf16", f"{1e3 * PINS['bf16']:.0f}")
glue.number("pin_fp16", f"{1e3 * PINS['fp16']:.0f}")

# %% [markdown]
# ## Training
# Small models around each member learn two tasks, with the native kernels and with the torch path, seed by seed.

# %%
glue.table(
    "training",
    gdn_tables.training(records["trained"]),
    caption=f"Two tasks learnt through each member, {origins['trained']}: losses of the last tenth of the steps in bits "
    f"an answer (recall) or a byte (text), means over {gdn_gpu_training.SEEDS} seeds. Memoryless: what a model needs "
    "that cannot look back. Between seeds: standard deviation of the torch path. Right: share of right answers, torch "
    "(float32) and native (bfloat16). Apart: native less torch, of whole curves and of their ends, in those standard "
    "deviations, and how many of them other seeds would explain. Not finite, fallen back or not learnt is a no as well.",
    align=("l", "r", "r", "l", *"rrrrrrrr", "l"),
)
learnt = gdn_tables.trained(records["trained"])
glue.number("training_hold", learnt["hold"])
glue.number("training_non_finite", learnt["non_finite"])
glue.number("training_apart", learnt["apart"])
glue.number("training_allowed", learnt["allowed"])
glue.number("training_control", learnt["control"])
glue.number("training_seeds", count(gdn_gpu_training.SEEDS))
glue.number("training_error", f"{100 * seed_noise.ERROR:.0f}")
glue.number("training_comparisons", count(gdn_training_judged.COMPARISONS))
glue.number("long_steps", count(gdn_gpu_training.LONG.steps))
glue.number("long_tokens", count(gdn_gpu_training.LONG.length))
glue.number("short_steps", count(gdn_gpu_training.CONTROL.steps))
glue.number("short_tokens", count(gdn_gpu_training.CONTROL.length))
glue.number("pairs", count(sequence_tasks.PAIRS))

# %%
glue.figure(
    "training",
    plotting.learning_curves(gdn_tables.learning(records["trained"])),
)

# %% [markdown]
# ## Speed
# Device times of CUDA graphs; a kernel is also compared with the bytes that it must move.

# %%
ours = gdn_speed_tables.timed(records["speeds"])
theirs = gdn_speed_tables.compared(records["speeds"])
vendor = gdn_speed_tables.compared(records["speeds"], "cudnn")
glue.table(
    "targets",
    gdn_speed_tables.targets(records["speeds"], records["values"]),
    caption=f"Targets that were set before anything was timed, {origins['speeds']}.",
)

# %%
glue.table(
    "breakdown",
    gdn_speed_tables.breakdown(ours),
    caption="The backward pass at B 2, H 16, L 2,048, d 128, kernel by kernel: the design's prediction beside the "
    f"measurement, {origins['speeds']}. The floor is the time of the bytes, each tensor once, at the bandwidth of the "
    "fastest copy.",
)

# %%
glue.table(
    "bounds",
    gdn_bounds_tables.bounds(records["bounds"]),
    caption="What bounds each kernel at the same shape, bfloat16, "
    f"{origins['bounds']}. *near*: the same work from the L2 cache; *bytes only*: the same loads and stores without "
    "the work, or the floor; *hidden*: how much of the shorter of these two runs behind the longer one; *tensor "
    "cores*: for how much of *near* the design's count of products keeps them busy. Below half hidden the two come "
    "in turn; else the longer one is the bound, and among the processors' own time the tensor cores are from "
    f"{100 * gdn_bounds_tables.FULL:.0f} % on.",
)

# %%
glue.table(
    "against",
    gdn_speed_tables.against([*theirs, *vendor]),
    caption=f"Against flash-linear-attention and cuDNN's frontend, same inputs, same process, bfloat16, "
    f"{origins['speeds']}: µs, and the largest difference between the two as a share of the largest value. Above one, "
    "ours is faster. Where their clock is events and not a graph, their time holds what the host adds. "
    f"{gdn_speed_tables.skipped(records['speeds'])}",
)

# %%
series = gdn_speed_tables.over_length(ours)
beside = gdn_speed_tables.over_length(theirs)
floors = ("bytes of the backward pass", "inputs and gradients alone")
lines = {
    "backward": [(r["length"], r["median_us"]["backward"]) for r in series],
    "forward": [(r["length"], r["median_us"]["forward"]) for r in series],
    **{
        line: [(r["length"], r["floor_us"][name]) for r in series]
        for line, name in zip(floors, ("backward", "least"), strict=True)
    },
    "forward and backward": [
        (r["length"], statistics.median(r["us"]["forward+backward"]))
        for r in beside
    ],
    "fla, forward and backward": [
        (r["length"], statistics.median(r["forward+backward"]["their_us"]))
        for r in beside
    ],
    "published backward (B200, fewer heads)": [
        (r["L"], 1e3 * r["ours"]) for r in published["vs_fla_graph_ms"]
    ],
}
glue.figure("time", plotting.times_over_length(lines, floors))

# %%
glue.figure(
    "ratios",
    plotting.speed_ratios(
        {
            "forward": gdn_speed_tables.ratios(theirs, "forward"),
            "forward and backward": gdn_speed_tables.ratios(
                theirs, "forward+backward"
            ),
        },
        [1 / r["ratio"] for r in published["vs_fla_graph_ms"]],
        xlabel="time of fla over ours (published: backward)",
    ),
)

# %%
glue.table(
    "speed",
    gdn_speed_tables.speed(ours),
    caption=f"Every shape that was timed, {origins['speeds']}: µs of the forward pass, of the three kernels of the "
    "backward pass, and of the backward pass; the times over what each pass must move (inputs, outputs, gradients, "
    "checkpoints) and over what our kernels move; and the peak of memory.",
)

# %%
both = [r for _, r in gdn_speed_tables.ratios(theirs, "forward+backward")]
glue.number("fla_ratio", gdn_speed_tables.span(both))
glue.number("backward", gdn_speed_tables.main_time(ours, "backward"))
glue.number("forward", gdn_speed_tables.main_time(ours, "forward"))
glue.number("missed", gdn_bounds_tables.missed(records["speeds"]))
glue.number("over_bytes", gdn_speed_tables.main_ratio(ours, "backward"))
glue.number("over_least", gdn_speed_tables.main_ratio(ours, "least"))
slower = [r["ratio"] for r in published["vs_fla_graph_ms"]]
glue.number("published_slower", f"{min(slower):.1f} to {max(slower):.1f}")

# %% [markdown]
# ## Under the gates
# The seven members as candidates of the audit.

# %%
glue.table(
    "controls",
    gdn_control_tables.gates(records["judged"], records["judged_here"]),
    caption="Gates by member: the native kernels on the GPU, and after the stroke the same texts by the torch backend "
    f"on a processor. GPU: {origins['judged']}; processor: {origins['judged_here']}.",
)
glue.number("controls_passed", gdn_control_tables.score(records["judged"]))
glue.number(
    "controls_passed_here", gdn_control_tables.score(records["judged_here"])
)
glue.number(
    "controls_resources", gdn_control_tables.resources(records["judged"])
)

# %% [markdown]
# ## What was tried, and what went wrong

# %%
noted = gdn_speed_tables.noted(levers, "levers")
glue.table(
    "levers",
    gdn_speed_tables.levers(noted, ours),
    caption="Levers that were built or are open: what they were expected to bring, and the time in which it shows. "
    "X is a row of 128 16-bit numbers for a token and head.",
)

# %%
glue.table(
    "killed",
    gdn_speed_tables.killed(noted),
    caption="Levers that were dropped on paper or by emulation.",
)

# %%
log = gdn_speed_tables.noted(faults, "faults")
glue.table(
    "bridge",
    gdn_speed_tables.bridge(log, report.published()),
    caption="Failure modes of the audit beside our own faults of the same kind, and what found the latter.",
)

# %%
glue.table(
    "faults",
    gdn_speed_tables.faults(log),
    caption="The log of faults of these kernels, and of the emulator that executes them, while they were built.",
)
glue.number("faults", count(len(log)))
glue.number("unlike", count(sum(not fault["like"] for fault in log)))
glue.number("found_by", gdn_speed_tables.found_by(log))
glue.close()
glue.numbers
