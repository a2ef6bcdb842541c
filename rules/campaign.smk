# The audit at scale: notebooks over what a campaign recorded (python -m lethe.audit.campaign). Nothing is judged
# here, so that a CPU makes every table of the chapter from the lines in data/measured.
CAMPAIGN_PAGES = {
    "rigor_gap": evidence_pages(
        "rigor_gap",
        ["headline", "funnel", "gates", "classes", "mechanisms", "floor", "channels", "strips", "statuses",
         "cuda_l1_gates", "cuda_l1_statuses", "sensitivity", "profiles", "stacks", "times", "throughput", "check",
         "recomputed"],
        ["moves", "gates"],
    ),
    "differential": evidence_pages(
        "differential",
        ["agreement", "cells", "cuda_l1_cells", "cell", "reverse", "review_classes", "review_rows",
         "mistakes"],
        ["cell"],
    ),
}

for name in CAMPAIGN_PAGES:

    rule:
        name:
            name
        input:
            nb=ancient(f"notebooks/{name}.py"),
        output:
            CAMPAIGN_PAGES[name],
        log:
            f"{RESULTS}/log/{name}.ipynb",
        params:
            src=src(f"notebooks/{name}.py", "data/measured", "data/review", "data/published"),
        shell:
            "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log}"
