# The verifier as a reward. The table of launch parameters, the long run of edits and the language model are records
# (lethe.rl.launch_gpu, edit_rl, lm_rl); policies over launch parameters are trained from the table by every build, and
# a few edits are judged here and now.
PAGES["reward"] = evidence_pages(
    "reward", ["ladder", "cheats", "methods", "choices", "taxonomy", "operators", "model"], ["regret", "outcomes"]
)


rule reward:
    input:
        nb=ancient("notebooks/reward.py"),
        cheats=f"{LIVE}/redteam.jsonl",
    output:
        PAGES["reward"],
    log:
        f"{RESULTS}/log/reward.ipynb",
    params:
        src=src("notebooks/reward.py", "lethe/kernels/mamba3", "data/corpus/house", "data/measured",
                "data/published/figures.json"),
        seeds=5 if config["profile"] == "full" else 1,
        attempts=64 if config["profile"] == "full" else min(8, config["evidence"]["mutants"]),
    shell:
        "{PYTHON} -m lethe.paper.notebook {input.nb} {output[0]} --log {log} -p cheats {input.cheats}"
        " -p seeds {params.seeds} -p attempts {params.attempts}"
