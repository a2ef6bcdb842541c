# Blackwell without Blackwell: recorded PTX executed on a CPU. Neither CuTe DSL nor Triton nor a GPU takes part; the
# full table of broken kernels and the comparison with silicon are records that lethe.paper.ptx_measure writes.
PAGES["blackwell_without_blackwell"] = evidence_pages("blackwell_without_blackwell", ["validation", "faults", "silicon"])


rule blackwell_without_blackwell:
    input:
        nb=ancient("notebooks/blackwell_without_blackwell.py"),
    output:
        PAGES["blackwell_without_blackwell"],
    log:
        f"{RESULTS}/log/blackwell_without_blackwell.ipynb",
    params:
        src=src("notebooks/blackwell_without_blackwell.py", "lethe/ptx", "data/measured"),
        seeds=20 if config["profile"] == "full" else 6,
        mutants=120 if config["profile"] == "full" else 24,
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log}"
        " -p seeds {params.seeds} -p mutants {params.mutants}"
