# The gated linear recurrence. Its members and its ladder are computed on a CPU by every build; the precision plans, the
# kernels executed without a GPU and the run on one are records that lethe.evidence.gdn_precision, gdn_emulated,
# gdn_blackwell and gdn_gpu write.
PAGES["one_recurrence"] = evidence_pages(
    "one_recurrence",
    ["reductions", "definitions", "ladder", "precision_bf16", "precision_fp16", "kernels", "executed",
     "blackwell_resources", "blackwell_executed", "accuracy", "checks", "training", "targets", "breakdown", "against", "speed", "controls",
     "levers", "killed", "bridge", "faults"],
    ["tensor_memory", "accuracy", "training", "time", "ratios"],
)


rule one_recurrence:
    input:
        nb=ancient("notebooks/one_recurrence.py"),
    output:
        PAGES["one_recurrence"],
    log:
        f"{RESULTS}/log/one_recurrence.ipynb",
    params:
        src=src("notebooks/one_recurrence.py", "lethe/kernels/gdn", "data/measured", "data/published/figures.json",
                "data/review/gdn_faults.json", "data/review/gdn_levers.json"),
        length=1000 if config["profile"] == "full" else 150,
        tokens=100 if config["profile"] == "full" else 40,
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log}"
        " -p length {params.length} -p tokens {params.tokens}"
