# What depends on what. `snakemake --cores all` computes what is missing or out of date and builds the book.
#
# A rule that runs our code carries `src`, the sha256 of every source file behind it (the notebook or module and
# all that it imports), and takes those files as `ancient` inputs: a result is computed again when a source
# changed, never because a checkout gave its file a new date.
import hashlib
import json
import sys
from pathlib import Path

from lethe import provenance
from lethe.paper.config import ConfigError, check, resolve_device


configfile: "config.yaml"


try:
    config.update(check(config))
    DEVICE = resolve_device(config["device"], elsewhere=config["cluster"])
except ConfigError as error:
    sys.exit(str(error))

PYTHON = sys.executable
RESULTS = "data/results"
HTML = "book/_build/html/index.html"
CORPORA = [name for name in ("house", "dlblas", "cuda_l1", "drkernel", "sakana") if config["corpora"].get(name)]
RUN = json.dumps({**config, "device": DEVICE}, sort_keys=True)


def src(*paths):
    """One digest over files, folders and everything they import."""
    return provenance.digest(paths, root=Path(workflow.basedir))


def flags():
    """How the audit judges, as options of `lethe audit`."""
    quick = "--quick" if config["profile"] == "quick" else "--full"
    limit = f" --order stratified --limit {config['audit']['limit']}" if config["audit"]["limit"] else ""
    cheap = config["audit"]["call_seconds"] if config["profile"] == "quick" and DEVICE == "cpu" else None
    limit += f" --call-seconds {cheap}" if cheap else ""
    gates = "".join(f" --gate {gate}" for gate in config["audit"]["gates"] or [])
    return f"--device {DEVICE} --seed {config['seed']} {quick}{limit}{gates}"


def corpus_files(name):
    """The corpus and, where its references live elsewhere, those too."""
    kernelbench = [config["corpora"]["kernelbench"]] if name in ("dlblas", "cuda_l1") else []
    return [config["corpora"][name], *kernelbench]


def corpus_options(name):
    path, *problems = corpus_files(name)
    return f"--corpus {name} --path {path}" + "".join(f" --problems {p}" for p in problems)


# they read an audit's lines and do not shape them
READERS = {f"{name}.py" for name in ("report", "floor", "statistics", "agreement", "robustness", "cost", "ledger", "review", "review_kit",
                                     "measured", "campaign", "campaign_record", "campaign_summary", "machine", "together", "published_rows", "published_check")}
AUDIT_SOURCES = ["lethe/cli_audit.py", "lethe/verifier",
                 *(str(p) for p in sorted(Path("lethe/audit").glob("*.py")) if p.name not in READERS)]
AUDIT = {name: src(*AUDIT_SOURCES, *corpus_files(name)) for name in CORPORA}


def run_folder(name):
    """Where shards append their lines. Other sources or settings have another folder, so that a killed audit
    resumes and never mixes with what an older version judged."""
    key = hashlib.sha256(f"{AUDIT[name]} {flags()}".encode()).hexdigest()[:12]
    return f"{RESULTS}/audit/runs/{name}-{key}"


def shard_file(wildcards):
    item = wildcards.scatteritem
    return f"{run_folder(wildcards.corpus)}/{wildcards.corpus}{'' if item == '1-of-1' else '.' + item}.jsonl"


scattergather:
    shard=config["shards"],


wildcard_constraints:
    corpus="[a-z0-9_]+",
    scatteritem=r"\d+-of-\d+",


localrules:
    all,
    merge,
    pages,
    record,


rule all:
    input:
        HTML,


rule audit:
    input:
        files=lambda wildcards: [ancient(path) for path in corpus_files(wildcards.corpus)],
    output:
        f"{RESULTS}/audit/shards/{{corpus}}.{{scatteritem}}.jsonl",
    log:
        f"{RESULTS}/log/audit.{{corpus}}.{{scatteritem}}.log",
    params:
        src=lambda wildcards: AUDIT[wildcards.corpus],
        corpus=lambda wildcards: corpus_options(wildcards.corpus),
        shard=lambda wildcards: wildcards.scatteritem.replace("-of-", "/"),
        run=lambda wildcards: run_folder(wildcards.corpus),
        lines=shard_file,
        flags=flags(),
    # one process per core on a CPU; on a GPU one shard at a time, with a pool of suspects
    threads: 1 if DEVICE == "cpu" else max(1, workflow.cores or 1)
    resources:
        gpu=0 if DEVICE == "cpu" else 1,
        runtime=120,
    shell:
        "{PYTHON} -m lethe audit {params.corpus} --shard {params.shard} {params.flags} --workers {threads}"
        " --out {params.run} --counterexamples {params.run}/counterexamples 2>&1 | tee {log}\n"
        "cp {params.lines} {output}"


rule merge:
    input:
        gather.shard(f"{RESULTS}/audit/shards/{{{{corpus}}}}.{{scatteritem}}.jsonl"),
    output:
        f"{RESULTS}/audit/{{corpus}}.jsonl",
    shell:
        "{PYTHON} -m lethe merge {input} --out {output}"


rule battery:
    input:
        nb=ancient("notebooks/battery.py"),
    output:
        nb="book/notebooks/battery.ipynb",
        numbers=f"{RESULTS}/numbers/battery.json",
        tables=expand("book/generated/battery_{table}.md", table=["example", "findings"]),
    log:
        f"{RESULTS}/log/battery.ipynb",
    params:
        src=src("notebooks/battery.py", "notebooks/examples"),
        quick="true" if config["profile"] == "quick" else "false",
        seed=config["seed"],
        device=DEVICE,
    resources:
        gpu=0 if DEVICE == "cpu" else 1,
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output.nb} --log {log}"
        " -p device {params.device} -p seed {params.seed} -p quick {params.quick}"


rule house_audit:
    input:
        nb=ancient("notebooks/house_audit.py"),
        lines=f"{RESULTS}/audit/house.jsonl",
        published=ancient("data/published/figures.json"),
    output:
        nb="book/notebooks/house_audit.ipynb",
        numbers=f"{RESULTS}/numbers/house_audit.json",
        tables=expand(
            "book/generated/house_audit_{table}.md",
            table=["funnel", "gates", "recorded", "classes", "mechanisms", "floor", "statuses"],
        ),
        figures=expand(
            "figures/house_audit_{figure}.{format}",
            figure=["funnel", "gates", "classes", "mechanisms"],
            format=["svg", "png"],
        ),
    log:
        f"{RESULTS}/log/house_audit.ipynb",
    params:
        src=src("notebooks/house_audit.py", "data/published/figures.json", "data/measured",
                config["corpora"]["house"] + "/manifest.json"),
        manifest=config["corpora"]["house"] + "/manifest.json",
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output.nb} --log {log}"
        " -p lines {input.lines} -p manifest {params.manifest}"


include: "rules/evidence.smk"
include: "rules/campaign.smk"
include: "rules/kernels.smk"
include: "rules/ptx.smk"
include: "rules/gdn.smk"
include: "rules/ssd.smk"
include: "rules/ecg.smk"
include: "rules/reward.smk"


rule pages:
    input:
        numbers=[rules.battery.output.numbers, rules.house_audit.output.numbers,
                 *(p[1] for p in [*PAGES.values(), *CAMPAIGN_PAGES.values()])],
        published=ancient(config["corpora"]["published"] or []),
        audits=expand(f"{RESULTS}/audit/{{corpus}}.jsonl", corpus=CORPORA),
        recorded=f"{RESULTS}/recorded.txt" if config["record"] else [],
    output:
        "book/generated/_config.yml",
        "book/generated/extra/rows.js",
    params:
        src=src("lethe/paper/pages.py", "book/_config.yml", "data/published", "data/measured"),
        run=RUN,
        audits=" ".join(f"--audit {RESULTS}/audit/{corpus}.jsonl" for corpus in CORPORA),
        published=f"--published {config['corpora']['published']}" if config["corpora"]["published"] else "",
    shell:
        "{PYTHON} -m lethe.paper.pages {params.audits} {params.published} --run {params.run:q}"


rule book:
    input:
        rules.pages.output,
        rules.battery.output,
        rules.house_audit.output,
        PAGES.values(),
        CAMPAIGN_PAGES.values(),
    output:
        HTML,
    log:
        f"{RESULTS}/log/book.log",
    params:
        src=src("lethe/paper/site.py", "book/_toc.yml", "book/references.bib", "book/_static",
                *sorted(map(str, Path("book").glob("*.md")))),
    shell:
        "{PYTHON} -m lethe.paper.site --log {log}"


rule record:
    input:
        expand(f"{RESULTS}/audit/{{corpus}}.jsonl", corpus=CORPORA),
    output:
        f"{RESULTS}/recorded.txt",
    params:
        src=src("lethe/paper/record.py"),
        run=RUN,
    shell:
        "{PYTHON} -m lethe.paper.record {input} --parameters {params.run:q} > {output}"
