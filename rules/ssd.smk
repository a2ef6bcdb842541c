# The state-space engine. The contract, the rules, the predictions and a few interpreted cases are computed by every
# build; the kernels executed from their PTX and the run on a GPU are records that lethe.evidence.ssd_emulated and
# ssd_gpu write.
PAGES["ssd_engine"] = evidence_pages(
    "ssd_engine",
    ["contract", "rules", "interface", "operands", "here", "resources", "executed", "accuracy", "checks", "prediction", "speed", "ways", "host",
     "official"],
    ["ratios"],
)


rule ssd_engine:
    input:
        nb=ancient("notebooks/ssd_engine.py"),
    output:
        PAGES["ssd_engine"],
    log:
        f"{RESULTS}/log/ssd_engine.ipynb",
    params:
        src=src("notebooks/ssd_engine.py", "lethe/kernels/ssd", "data/measured", "data/published/figures.json",
                "data/review/ssd_contract.json"),
        cases=8 if config["profile"] == "full" else 2,
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log} -p cases {params.cases}"
