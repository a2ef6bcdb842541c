# %% [markdown]
# # The verifier as a reward
#
# What an outcome earns, what the red team's cheats would earn, and two things that were trained on it: a policy over
# launch parameters, replayed from a table that a GPU measured once, and policies that edit kernels.

# %% tags=["parameters"]
# The red team as this build judged it, and the full run on a GPU.
cheats = "data/results/evidence/redteam.jsonl"
recorded_cheats = "data/measured/h200/redteam_audit.json"
# Every launch configuration at every shape, measured once.
launches = "data/measured/h200/launch_table.json"
# How many policies are trained from nothing on each kernel's table.
seeds = 1
# The recorded runs of edits, by script and by the language model.
edits = "data/measured/cpu/edit_rl.json"
models = (
    "data/measured/h200/lm_edit_rl.json,data/measured/cpu/lm_edit_rl.json"
)
# How many attempts at edits this build judges itself, and where their verdicts are kept.
attempts = 8
verdicts = "data/results/rl/verdicts.jsonl"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from pathlib import Path

import torch

from lethe import plotting
from lethe.audit import report
from lethe.audit.run import merge
from lethe.paper import evidence, reward_tables
from lethe.paper.glue import Glue, count, percent
from lethe.rl import edit_rl, launch_table
from lethe.rl.judging import Court

torch.set_num_threads(1)
glue = Glue("reward", results=results, pages=pages, figures=figures)
published = report.published()["rl"]

# %% [markdown]
# ## The ladder

# %%
glue.table(
    "ladder",
    reward_tables.ladder_table(),
    caption="What an outcome earns in each schedule; speed pays only where every gate passed.",
)

# %% [markdown]
# ## What cheats earn
# Every cheat of the red team and its honest twin, as this build judged them on the CPU.

# %%
judged_here = merge([cheats])
glue.table(
    "cheats",
    reward_tables.earnings(judged_here),
    caption="What the red team's cheats and their honest twins would be paid, as judged by this build on a CPU.",
)

# %%
kinds = [line["extra"]["kind"] for line in judged_here]
glue.number("cheats_here", count(kinds.count("cheat")))
glue.number("paid_here", count(reward_tables.paid_cheats(judged_here)))
on_gpu = evidence.samples(recorded_cheats)
glue.number(
    "cheats_gpu",
    count(sum(line["extra"]["kind"] == "cheat" for line in on_gpu))
    if on_gpu
    else reward_tables.MISSING,
)
glue.number(
    "paid_gpu",
    count(reward_tables.paid_cheats(on_gpu))
    if on_gpu
    else reward_tables.MISSING,
)

# %% [markdown]
# ## Launch parameters
# The table is the environment: each method is charged for every cell that it looks at for the first time.

# %%
record = evidence.load(launches)
tables = launch_table.tables(record) if record is not None else {}
runs = {op: reward_tables.trained(t, seeds) for op, t in tables.items()}
glue.table(
    "methods",
    reward_tables.methods_table(runs),
    caption="Mean regret (time over that of the best configuration of the table, less one) and the measurements spent.",
)

# %%
glue.table(
    "choices",
    reward_tables.choices_table(runs),
    caption="Shapes that no method was tuned on: the best configuration and what the policy would launch.",
)

# %%
curves = {
    op: {
        "GRPO, the policy's choice": [
            (p.spent, p.greedy) for curve in run.curves for p in curve
        ],
        "GRPO, fastest it measured": [
            (p.spent, p.best) for curve in run.curves for p in curve
        ],
        "random search": [
            (p.spent, p.best) for curve in run.random for p in curve
        ],
    }
    for op, run in runs.items()
}
glue.figure(
    "regret",
    plotting.regret_curves(
        curves, {op: t.scatter() for op, t in tables.items()}
    ),
)

# %%
glue.number(
    "launch_origin",
    evidence.origin(record) if record is not None else reward_tables.MISSING,
)
glue.number(
    "cells",
    count(
        sum(
            len(shape)
            for t in tables.values()
            for shape in t.samples.values()
        )
    )
    if tables
    else reward_tables.MISSING,
)
glue.number("seeds", count(seeds))
glue.number(
    "scatter",
    percent(max(t.scatter() for t in tables.values()))
    if tables
    else reward_tables.MISSING,
)

# %% [markdown]
# ## Edits
# A scripted policy chooses an operator, the operator a place; what applies is judged by the whole battery. A few
# attempts are judged here and now, the tables show the recorded run.

# %%
edit_record = evidence.load(edits)
samples = edit_record.samples if edit_record is not None else []
live = []
if attempts:
    with Court(Path(verdicts)) as court:
        live = edit_rl.run(
            court,
            edit_rl.Plan(attempts=attempts, kernels_a_step=1),
            edit_rl.levels_of((("reduction_sum__cpp",),)),
        )
        cost = court.throughput
    print(cost.facts())
shown = samples or live
glue.table(
    "taxonomy",
    reward_tables.taxonomy(shown, published["edit_rl"]),
    caption="How attempts at edits ended: scripted operators on the house corpus here, a language model as published.",
)

# %%
glue.table(
    "operators",
    reward_tables.operators_table(shown),
    caption="The scripted operators, and how often the policy drew each in the first and in the last third of the run.",
)

# %%
words = list(reward_tables.WORDS)
mine = [sum(s["outcome"] == o for s in shown) for o in words]
theirs = [
    published["edit_rl"].get(reward_tables.PUBLISHED.get(o, ""))
    for o in words
]
glue.figure(
    "outcomes",
    plotting.outcome_shares(
        [reward_tables.WORDS[o] for o in words], mine, theirs
    ),
)

# %%
ratios = reward_tables.speedups(shown)
faster = sum(s["outcome"] == "faster" for s in shown)
applied = sum(s["outcome"] != "not_applied" for s in shown)
glue.number("attempts", count(len(shown)))
glue.number("applied", percent(applied, len(shown)))
glue.number(
    "published_applied",
    percent(
        1
        - published["edit_rl"]["not_applied"]
        / published["edit_rl"]["attempts"]
    ),
)
glue.number("timed", count(len(ratios)))
controls = [
    s
    for s in shown
    if s["operator"] == "comment" and s["speedup"] is not None
]
glue.number("controls", count(len(controls)))
glue.number(
    "controls_faster", count(sum(s["outcome"] == "faster" for s in controls))
)
glue.number("faster", count(faster))
glue.number("largest", f"{max(ratios):.2f}" if ratios else "–")
glue.number(
    "edit_origin",
    evidence.origin(edit_record)
    if edit_record is not None
    else "judged by this build",
)
glue.number("live", count(len(live)))
told = (
    edit_record.parameters["cost"]
    if edit_record is not None
    else (cost.facts() if live else {})
)
glue.number(
    "throughput",
    f"{60 * told['judged'] / told['seconds']:.1f}"
    if told.get("seconds")
    else "–",
)
distinct = (
    edit_record.parameters["distinct"]
    if edit_record is not None
    else told.get("distinct", 0)
)
glue.number("reused", percent(1 - distinct / applied) if applied else "–")
broken = sorted(
    {
        s["kernel"]
        for s in shown
        if s["operator"] == "comment" and s["outcome"] == "broke_contract"
    }
)
glue.number("controls_broken", ", ".join(f"`{k}`" for k in broken) or "none")

# %% [markdown]
# ## A small language model
# Trained by reward only where edits of its own apply after the warm start.

# %%
found = [m for m in map(evidence.load, models.split(",")) if m is not None]
model = found[0] if found else None
glue.table(
    "model",
    reward_tables.model_table(model),
    caption="How the edits of SmolLM2-135M-Instruct ended, on kernels that its warm start showed and on others.",
)

# %%
glue.number("model_arm", reward_tables.model_arm(model))
glue.number(
    "model_origin",
    evidence.origin(model) if model is not None else reward_tables.MISSING,
)
glue.close()
glue.numbers
