# Evidence about the verifier: corpora whose right verdicts are known, the tests of the fairness rules, the
# calibration of the bands. A full run is recorded under data/measured; the quick profile judges a stratified
# sample of the same rows again and the notebooks compare.
EVIDENCE = ["redteam", "honest", "mutants"]
LIVE = f"{RESULTS}/evidence"
EVIDENCE_AUDIT = {name: src(*AUDIT_SOURCES, f"lethe/evidence/{name}", "data/corpus") for name in EVIDENCE}


def evidence_flags(name):
    limit = config["evidence"][name] if config["profile"] == "quick" else None
    few = f" --order stratified --limit {limit}" if limit else ""
    quick = "--quick" if config["profile"] == "quick" else "--full"
    return f"--device {DEVICE} --seed {config['seed']} {quick}{few}"


rule evidence_audit:
    output:
        f"{LIVE}/{{evidence}}.jsonl",
    log:
        f"{RESULTS}/log/evidence.{{evidence}}.log",
    wildcard_constraints:
        evidence="|".join(EVIDENCE),
    params:
        src=lambda wildcards: EVIDENCE_AUDIT[wildcards.evidence],
        flags=lambda wildcards: evidence_flags(wildcards.evidence),
        run=lambda wildcards: f"{LIVE}/runs/{wildcards.evidence}-{EVIDENCE_AUDIT[wildcards.evidence][:12]}-{config['profile']}",
    threads: max(1, workflow.cores or 1)
    resources:
        gpu=0 if DEVICE == "cpu" else 1,
    shell:
        "{PYTHON} -m lethe audit --corpus {wildcards.evidence} {params.flags} --workers {threads}"
        " --out {params.run} 2>&1 | tee {log}\n"
        "cp {params.run}/{wildcards.evidence}.jsonl {output}"


rule calibration_rows:
    output:
        f"{LIVE}/calibration.jsonl",
    params:
        src=src("lethe/evidence/calibration", "lethe/verifier"),
        quick="--quick" if config["profile"] == "quick" else "",
        operators=" ".join(f"--operator {name}" for name in config["evidence"]["calibrated"] or []),
    resources:
        gpu=0 if DEVICE == "cpu" else 1,
    shell:
        "{PYTHON} -m lethe.evidence.calibration --out {output} --device {DEVICE} {params.quick} {params.operators}"


rule fairness_rows:
    output:
        f"{LIVE}/fairness.jsonl",
    params:
        src=src("lethe/evidence/fairness", "lethe/verifier", *sorted(map(str, Path("tests/evidence/fairness").glob("*.py")))),
        sample=f"--rules {config['evidence']['rules']}" if config["evidence"]["rules"] else "",
    shell:
        "rm -f {output}.part\n"
        "LETHE_FAIRNESS_REPORT={output}.part {PYTHON} -m pytest -q -p no:cacheprovider tests/evidence/fairness/test_rules.py {params.sample}\n"
        "mv {output}.part {output}"


def evidence_pages(name, tables, figures=()):
    """What the notebook of an evidence experiment hands to the book."""
    return [
        f"book/notebooks/{name}.ipynb",
        f"{RESULTS}/numbers/{name}.json",
        *(f"book/generated/{name}_{table}.md" for table in tables),
        *(f"figures/{name}_{figure}.{kind}" for figure in figures for kind in ("svg", "png")),
    ]


PAGES = {
    "redteam": evidence_pages("redteam", ["attacks"], ["matrix"]),
    "fairness": evidence_pages("fairness", ["rules", "summation"]),
    "specificity": evidence_pages("specificity", ["transforms", "rejections"]),
    "sensitivity": evidence_pages("sensitivity", ["rates", "operators", "survivors", "equivalents"], ["matrix"]),
    "calibration": evidence_pages("calibration", ["margins", "carry"], ["bands"]),
    "referee": evidence_pages("referee", ["points", "stability"], ["points"]),
}
NEEDS = {
    "redteam": ["redteam"],
    "fairness": ["fairness"],
    "specificity": ["honest"],
    "sensitivity": ["mutants"],
    "calibration": ["calibration"],
    "referee": ["honest", "mutants"],
}

for name in PAGES:

    rule:
        name:
            name
        input:
            nb=ancient(f"notebooks/{name}.py"),
            rows=[f"{LIVE}/{rows}.jsonl" for rows in NEEDS[name]],
        output:
            PAGES[name],
        log:
            f"{RESULTS}/log/{name}.ipynb",
        params:
            src=src(f"notebooks/{name}.py", "data/measured", "data/corpus/mutants", "data/published/figures.json"),
            options=f"-p longest {config['evidence']['longest_sum']}" if name == "fairness" else "",
        shell:
            "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log} {params.options}"
