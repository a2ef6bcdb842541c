# The six Triton kernels and issue 904. Compiling and timing are recorded under data/measured; here the control is
# judged again on a CPU (or the device) and the notebooks show the records.
CONTROLS = f"{LIVE}/controls.jsonl"
CONTROL_GATES = " ".join(f"--gate {gate}" for gate in ("CMP-01", "CMP-02", "RES-01", "RES-02"))


rule controls_audit:
    output:
        CONTROLS,
    log:
        f"{RESULTS}/log/evidence.controls.log",
    params:
        src=src(*AUDIT_SOURCES, "lethe/evidence/controls.py", "lethe/kernels/mamba3", "data/corpus/controls"),
        # the quick profile takes the kernels that the interpreter runs fast, through four gates
        flags=f"--device {DEVICE} --seed {config['seed']} --patience 20"
        + (f" --quick --limit {config['evidence']['controls']} --order stratified {CONTROL_GATES}" if config["profile"] == "quick" and DEVICE == "cpu" else " --full"),
        run=f"{LIVE}/runs/controls-{config['profile']}",
    threads: max(1, workflow.cores or 1)
    resources:
        gpu=0 if DEVICE == "cpu" else 1,
    shell:
        "rm -rf {params.run}\n"
        "{PYTHON} -m lethe audit --corpus controls {params.flags} --workers {threads} --out {params.run} 2>&1 | tee {log}\n"
        "cp {params.run}/controls.jsonl {output}"


PAGES |= {
    "six_kernels": evidence_pages(
        "six_kernels",
        ["control", "measured", "matrix", "healthy_scan", "healthy_siso", "crippled_siso",
         *(f"earlier_{suite}" for suite in ("scan", "block", "siso", "mimo")),
         "levers"],
        ["matrix", "ratios"],
    ),
    "issue_904": evidence_pages("issue_904", ["columns", "targets", "agreement"], ["columns"]),
}


rule six_kernels:
    input:
        nb=ancient("notebooks/six_kernels.py"),
        rows=CONTROLS,
    output:
        PAGES["six_kernels"],
    log:
        f"{RESULTS}/log/six_kernels.ipynb",
    params:
        src=src("notebooks/six_kernels.py", "data/measured", "data/review", "data/published/figures.json"),
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log} -p here {input.rows}"


rule issue_904:
    input:
        nb=ancient("notebooks/issue_904.py"),
    output:
        PAGES["issue_904"],
    log:
        f"{RESULTS}/log/issue_904.ipynb",
    params:
        src=src("notebooks/issue_904.py", "data/measured"),
        official=config["official_mamba"] or "",
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log} -p official '{params.official}'"
