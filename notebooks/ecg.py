# %% [markdown]
# # Electrocardiograms
#
# Classifiers on the two blocks, trained on twelve-lead electrocardiograms. This machine trains small ones; what took
# GPUs comes from records, and where there is none the tables say so.

# %% tags=["parameters"]
# PTB-XL or an excerpt of it, a folder or an archive; nothing: records that our own code draws.
data = ""
generated = 320
# The device and the epochs of the small models.
device = "auto"
epochs = 5
seed = 0
# What GPUs measured: the excerpt, the classifier of 1.10 B parameters, the same on several GPUs.
excerpt = "data/measured/h200/ecg_excerpt.json"
paper = "data/measured/h200/ecg_paper.json"
processes = "data/measured/h200/ecg_processes.json"
# Where numbers, tables for the book, and figures go.
results = "data/results"
pages = "book/generated"
figures = "figures"

# %%
from dataclasses import replace
from pathlib import Path

import torch

from lethe.ecg import plotting, ptbxl, synthetic
from lethe.ecg.model import SIZES, parameters
from lethe.ecg.parallel import world
from lethe.ecg.recipe import RECIPES
from lethe.ecg.train import train
from lethe.paper import ecg_tables, evidence
from lethe.paper.glue import Glue, count

glue = Glue("ecg", results=results, pages=pages, figures=figures)
records = {
    "excerpt": evidence.load(excerpt),
    "paper": evidence.load(paper),
    "processes": evidence.load(processes),
}
print(
    {
        name: "there" if r else "not measured yet"
        for name, r in records.items()
    }
)

# %% [markdown]
# ## The records
# A record whose file is cut, or does not have its checksum, is named and left out.

# %%
folder = data or synthetic.generate(
    Path(results) / "ecg" / "records", generated, seed
)
ecgs = ptbxl.load(folder)
print(f"{ecgs.source}: {ecgs.told()}")
glue.number("source", ecgs.source)
glue.number("records", count(len(ecgs)))
glue.number("skipped", count(len(ecgs.skipped)))
glue.table(
    "records",
    ecg_tables.records_table(ecgs),
    caption=f"The records that this build read ({ecgs.source}); a record may have several superclasses.",
)

# %% [markdown]
# ## One of them, as it is read
# 25 mm/s and 10 mm/mV: a large square is 0.2 s and 0.5 mV. Four leads a row, 2.5 s each, and lead II below.

# %%
shown = int(ecgs.labels.sum(1).argmax())
names = ", ".join(
    c for c, y in zip(ptbxl.CLASSES, ecgs.labels[shown], strict=True) if y
)
title = f"{'generated' if ecgs.generated else 'PTB-XL'} record {ecgs.ids[shown]}: {names}"
glue.figure(
    "twelve_leads",
    plotting.twelve_leads(ecgs.signals[shown], ecgs.rate, title),
)

# %% [markdown]
# ## Small models, trained here
# On a CPU the blocks run in torch operators (backend torch), which equal the kernels; on a GPU they are the kernels.

# %%
ready = ecgs.standardised()
recipe = replace(RECIPES["demo"], epochs=epochs, seed=seed)
outcomes = {}
torch.set_num_threads(1)  # other notebooks run beside this one
with world(device) as at:
    for name, shape in (
        ("MambaBlock", SIZES["demo"]),
        ("Mamba3Block", SIZES["demo3"]),
        ("ResNet1D", SIZES["demo_resnet"]),
    ):
        outcomes[name] = train(shape, recipe, ready, at)
labels = ready.labels[ready.fold(ptbxl.TEST)]
glue.table(
    "demo",
    ecg_tables.demo_table(outcomes, labels),
    caption=f"Small classifiers that this build trained on {ecgs.source}, one seed.",
)

# %%
glue.figure(
    "learning",
    plotting.learning(
        {name: o.losses for name, o in outcomes.items()},
        {name: o.validation for name, o in outcomes.items()},
    ),
)

# %% [markdown]
# ## The excerpt, on a GPU
# Areas and intervals are computed here, from the predictions of each model's seeds.

# %%
record = records["excerpt"]
glue.table(
    "excerpt",
    ecg_tables.excerpt_table(record),
    caption="Classifiers of about 0.4 M parameters on an excerpt of PTB-XL at 100 Hz, fold 10.",
)

# %%
glue.table(
    "classes",
    ecg_tables.classes_table(record),
    caption="The same by superclass: area under the ROC curve, mean of the seeds, 95% bootstrap interval.",
)

# %%
curves, areas = ecg_tables.roc_panels(record)
glue.figure("roc", plotting.roc_curves(curves, areas))

# %%
glue.number("mamba_lead", ecg_tables.lead(record, "mamba", "resnet"))
glue.number("mamba3_lead", ecg_tables.lead(record, "mamba3", "resnet"))
glue.number("tried", ecg_tables.tried(record))
sizes = ecg_tables.sizes(record)
glue.number("excerpt_train", sizes["train"])
glue.number("excerpt_validation", sizes["validation"])
glue.number("excerpt_test", sizes["test"])
glue.number("excerpt_skipped", sizes["skipped"])

# %% [markdown]
# ## The published size
# 200 steps with everything in float32, and fewer with the matrix products in TF32.

# %%
glue.number("parameters", count(parameters(SIZES["paper"])))
glue.number("small", f"{parameters(SIZES['mamba']) / 1e6:.1f} million")
glue.number("expand", SIZES["paper"].expand)
glue.number("rank", count(SIZES["paper"].dt_rank))
glue.table(
    "paper",
    ecg_tables.paper_table(records["paper"]),
    caption="The classifier of the published size on one H200, global batch 64.",
)

# %% [markdown]
# ## Several GPUs

# %%
glue.table(
    "processes",
    ecg_tables.processes_table(records["processes"]),
    caption="Data-parallel training of the classifier of the published size on the GPUs of one host, global batch 64.",
)

# %%
glue.figure(
    "loss",
    plotting.same_loss(ecg_tables.loss_curves(records["processes"])),
)
glue.close()
glue.numbers
