# %% [markdown]
# # Six kernels
#
# The positive control, the compile matrix and the speeds of the six Triton kernels. The control and the matrix need no
# GPU; speeds come from a record, and where there is none the tables say so.

# %% tags=["parameters"]
# The control as this build judged it, and the full runs on a CPU and on a GPU.
here = "data/results/evidence/controls.jsonl"
on_cpu = "data/measured/cpu/controls_audit.json"
on_gpu = "data/measured/h200/controls_audit.json"
# The compile matrix, the GPU tests and the speeds.
matrix = "data/measured/cpu/compile_matrix.json"
checks = "data/measured/h200/mamba3_gpu.json"
speeds = "data/measured/h200/mamba3_speed.json"
tuning = "data/measured/h200/mamba3_tune.json"
# What was tried and dropped, by candidates of the tuning.
levers = "data/review/mamba3_levers.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from pathlib import Path

from lethe import plotting
from lethe.audit import report
from lethe.paper import evidence, kernel_tables, lever_tables
from lethe.paper.glue import Glue, count

glue = Glue("six_kernels", results=results, pages=pages, figures=figures)
records = {
    name: evidence.load(path)
    for name, path in {
        "cpu": on_cpu,
        "gpu": on_gpu,
        "matrix": matrix,
        "checks": checks,
        "speeds": speeds,
        "tuning": tuning,
    }.items()
}
live = evidence.gather(here, on_cpu)
print(
    {
        name: "there" if r else "not measured yet"
        for name, r in records.items()
    }
)

# %% [markdown]
# ## The positive control
# All twelve gates on all six kernels; no gate may fail, and CMP-02, CMP-03 and RES-02 must pass.

# %%
glue.table(
    "control",
    kernel_tables.control_table(
        {"cpu": records["cpu"], "gpu": records["gpu"]}
    ),
    caption="The six kernels through the battery: "
    + " / ".join(
        f"{where}, {evidence.origin(records[name])}"
        for name, where in (
            ("cpu", "in Triton's interpreter"),
            ("gpu", "on a GPU"),
        )
        if records[name] is not None
    ),
)

# %%
glue.table(
    "measured",
    kernel_tables.measured_table(records["cpu"]),
    caption="What each gate measured on each control, on the CPU.",
)

# %%
glue.number("passed_cpu", kernel_tables.control_score(records["cpu"]))
glue.number("passed_gpu", kernel_tables.control_score(records["gpu"]))
glue.number("judged_here", count(live.here))
glue.number("agreement", live.agreement)

# %% [markdown]
# ## The compile matrix
# Compiled for five architectures on a machine without a GPU.

# %%
glue.table(
    "matrix",
    kernel_tables.matrix(records["matrix"]),
    caption="What each kernel needs at most, over its functions, their tiles and five architectures (sm_80 to "
    "sm_120). Spills: stores and loads, bytes a thread. As launched: each function with its own number of warps"
    + (
        ", " + evidence.origin(records["matrix"])
        if records["matrix"] is not None
        else ""
    )
    + ".",
)

# %%
rows = records["matrix"].samples if records["matrix"] is not None else []
launched = kernel_tables.launched(records["matrix"])
glue.figure("matrix", plotting.compile_matrix(launched))

# %%
glue.number("compiled", count(len(rows)) if rows else kernel_tables.MISSING)
glue.number(
    "do_not_fit",
    count(sum(bool(r["exceeds"]) for r in rows))
    if rows
    else kernel_tables.MISSING,
)
glue.number("worst_spill", kernel_tables.worst_spill(rows))
glue.number("launched_spill", kernel_tables.worst_spill(launched))

# %% [markdown]
# ## On a GPU

# %%
steps = records["checks"].samples if records["checks"] is not None else {}
status = steps.get("tests", {}).get("status", "")
glue.number(
    "gpu_origin",
    kernel_tables.MISSING
    if records["checks"] is None
    else evidence.origin(records["checks"]),
)
glue.number(
    "gpu_tests",
    {0: "all pass", "": kernel_tables.MISSING}.get(status, "fail"),
)
sanitized = steps.get("sanitizer", {})
glue.number(
    "sanitizer",
    kernel_tables.MISSING
    if not sanitized
    else sanitized["why"]
    if not sanitized["started"]
    else ", ".join(
        f"{t}: {kernel_tables.sanitized(sanitized[t])}"
        for t in ("memcheck", "racecheck")
    ),
)

# %% [markdown]
# ## Speeds
# The scoreboard keeps three kinds of baseline apart: a healthy official kernel, a crippled one, and our own earlier
# default. A table holds one kind.

# %%
timed = kernel_tables.speed_rows(records["speeds"])
speed_origin = (
    kernel_tables.MISSING
    if records["speeds"] is None
    else evidence.origin(records["speeds"])
)
glue.number("speed_origin", speed_origin)
for kind, suites in kernel_tables.KINDS.items():
    for suite, names in suites.items():
        name = next(
            (n for n in names if any(n in r["times"] for r in timed)),
            names[0],
        )
        glue.table(
            f"{kind}_{suite}",
            kernel_tables.speed_table(timed, suite, name),
            caption=f"{kernel_tables.SUITES[suite]}: ours against {name}, bfloat16, {speed_origin}. × baseline: its "
            "time over ours; above one, ours is faster. × roofline: our time over that of the least memory traffic at "
            f"{kernel_tables.BANDWIDTH / 1e12:.1f} TB/s.",
        )

# %%
published = report.published()["mamba3_kernels"]
groups = {
    f"{direction}, {suite}": [
        (
            f"L{r['length']}",
            kernel_tables.median(r, name, direction)
            / kernel_tables.median(r, "ours auto", direction),
        )
        for r in timed
        if r["suite"] == suite and name in r["times"]
    ]
    for suite, name in (
        ("scan", "selective_scan CUDA"),
        ("siso", "official SISO"),
    )
    for direction in ("forward", "backward")
}
glue.figure(
    "ratios",
    plotting.speed_ratios(
        groups,
        [p["ratio"] for p in published["forward_vs_selective_scan_cuda"]],
        xlabel="time of the healthy official kernel over ours (published: forward scan)",
    ),
)

# %%
glue.table(
    "targets",
    kernel_tables.targets(timed),
    caption=f"Targets that were set before anything was timed, {speed_origin}: ratios of the baseline's time over ours.",
)
gain = kernel_tables.selector_gain(timed)
glue.number("selector_gain", f"{gain:.2f}" if gain else kernel_tables.MISSING)
for name, suite, baseline, direction in (
    ("scan_forward", "scan", "selective_scan CUDA", "forward"),
    ("scan_backward", "scan", "selective_scan CUDA", "backward"),
    ("siso_forward", "siso", "official SISO", "forward"),
    ("siso_backward", "siso", "official SISO", "backward"),
):
    ratios = kernel_tables.ratio_range(
        [r for r in timed if r["suite"] == suite], baseline, direction
    )
    glue.number(name, ratios)

# %% [markdown]
# ## Levers that were tried
# Each was timed against what is built, at the shapes of the tuning.

# %%
tuned = records["tuning"].samples if records["tuning"] is not None else []
glue.table(
    "levers",
    lever_tables.table(lever_tables.noted(Path(levers)), tuned),
    caption="Levers of the selective scan: time of what was tried over the time of what is built, geometric mean over "
    "the shapes (smallest to largest).",
)
glue.close()
glue.numbers
