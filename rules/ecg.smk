# Electrocardiograms. Small classifiers are trained by every build, on generated records unless config.yaml names
# PTB-XL or an excerpt of it; what needs GPUs is a record that lethe.evidence.ecg_gpu writes.
PAGES["ecg"] = evidence_pages(
    "ecg",
    ["records", "demo", "excerpt", "classes", "paper", "processes"],
    ["twelve_leads", "learning", "roc", "loss"],
)


rule ecg:
    input:
        nb=ancient("notebooks/ecg.py"),
        data=ancient(config["ecg"]["data"] or []),
    output:
        PAGES["ecg"],
    log:
        f"{RESULTS}/log/ecg.ipynb",
    params:
        src=src("notebooks/ecg.py", "data/measured"),
        data=config["ecg"]["data"] or "",
        epochs=config["ecg"]["epochs"] * (1 if config["profile"] == "quick" else 4),
        seed=config["seed"],
        device=DEVICE,
    resources:
        gpu=0 if DEVICE == "cpu" else 1,
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log} -p data '{params.data}'"
        " -p epochs {params.epochs} -p seed {params.seed} -p device {params.device}"
