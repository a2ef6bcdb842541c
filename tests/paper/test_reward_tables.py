"""Tables about the reward, with records and without."""

from __future__ import annotations

from types import SimpleNamespace

from lethe import plotting
from lethe.audit import report
from lethe.paper import reward_tables
from lethe.rl import config_rl
from lethe.rl.launch_space import Space
from lethe.rl.launch_table import Table
from lethe.rl.outcomes import Outcome

EDITS = report.published()["rl"]["edit_rl"]
SPACE = Space("C2", "scan", (("rows", (4, 8)), ("lanes", (2, 4)), ("warps", (1, 2)), ("registers", (0, 128))))
SHAPES = ((1, 512, 256), (8, 2048, 1024))
HELD_OUT = ((2, 1024, 512),)


def table(held_out=HELD_OUT):
    times = [[[float(10 + i)] * 3 for i in range(len(SPACE))] for _ in range(3)]
    samples = dict(zip((*SHAPES, *HELD_OUT), times, strict=True))
    return Table(SPACE, samples, SHAPES, held_out, dict.fromkeys(samples, 11.0))


def attempt(outcome, operator="warps", step=0, speedup=None):
    return {"outcome": outcome, "operator": operator, "step": step, "speedup": speedup, "reward": 0.5}


def test_ladder_has_a_row_for_every_outcome():
    told = reward_tables.ladder_table()
    assert len(told) == len(Outcome) and list(told.columns) == ["outcome", "paper", "readme", "strict"]
    assert set(reward_tables.WORDS) == set(Outcome)


def test_published_attempts_add_up():
    names = set(reward_tables.PUBLISHED.values())
    assert sum(EDITS[name] for name in names) == EDITS["attempts"]


def test_taxonomy_stands_beside_the_published_one():
    samples = [attempt("not_applied")] * 3 + [attempt("faster", speedup=1.5)]
    told = reward_tables.taxonomy(samples, EDITS).set_index("outcome")
    assert (
        told.loc["edit did not apply", "here"] == "3" and told.loc["edit did not apply", "share"] == "75.0%"
    )
    assert told.loc["correct and faster", "published"] == "–"
    assert told.loc["attempts", "here"] == "4"


def test_without_a_record_the_tables_say_so():
    assert "not measured yet" in reward_tables.taxonomy([], EDITS)["here"].tolist()
    assert reward_tables.operators_table([]).iloc[0, 0] == "not measured yet"
    assert reward_tables.methods_table({}).iloc[0, 0] == "not measured yet"
    assert reward_tables.choices_table({}).iloc[0, 0] == "not measured yet"
    assert reward_tables.model_table(None).iloc[0, 0] == reward_tables.model_arm(None) == "not measured yet"


def test_the_models_arm_in_words():
    steps = [{"outcomes": {"not_applied": 3, "faster": 1}}, {"outcomes": {"not_applied": 4}}]
    told = SimpleNamespace(samples={"reward": steps})
    assert reward_tables.model_arm(told) == "run for 2 steps, in which 1 of 8 answers applied"
    told = SimpleNamespace(samples={"reward": "not run: the time was spent"})
    assert reward_tables.model_arm(told) == "not run: the time was spent"


def test_operators_by_thirds():
    samples = [attempt("not_applied", "misremember", 0), attempt("correct_untimed", "warps", 1)]
    samples += [attempt("broke_contract", "warps", 2)]
    told = reward_tables.operators_table(samples).set_index("operator")
    assert (told.loc["warps", "attempts"], told.loc["warps", "correct"]) == (2, 1)
    assert (told.loc["misremember", "first third"], told.loc["misremember", "last third"]) == (
        "100.0%",
        "0.0%",
    )


def test_methods_of_a_small_table():
    run = reward_tables.trained(table(), 2, config_rl.Plan(steps=4, look=1, group=4))
    told = reward_tables.methods_table({"C2": run}).set_index("method")
    assert told.loc["exhaustive search", "measurements"] == "32"
    assert told.loc["kernels' selector", "regret"] == "10.0%"
    assert told.loc["best of the nearest shape", "regret on unseen shapes"] == "0.0%"
    assert told.loc["Triton's autotuner", "regret"] == "–"
    assert len(reward_tables.choices_table({"C2": run})) == len(HELD_OUT)
    assert [p.spent for p in run.random[0]] == sorted({p.spent for p in run.curves[0]})


def test_methods_without_unseen_shapes():
    run = reward_tables.trained(table(()), 1, config_rl.Plan(steps=1, look=1, group=2))
    assert "–" in reward_tables.methods_table({"C2": run})["regret on unseen shapes"].tolist()


def test_figures_with_and_without_records():
    empty = plotting.regret_curves({}, {})
    assert empty.axes[0].texts[0].get_text() == "none"
    run = {"C2": {"GRPO": [(4, 0.5), (8, 0.1)], "random search": [(4, 0.6), (8, 0.2)]}}
    drawn = plotting.regret_curves(run, {"C2": 0.01}).axes[0]
    assert [t.get_text() for t in drawn.get_legend().get_texts()] == ["GRPO", "random search"]
    shares = plotting.outcome_shares(["applied", "not"], [3, 1], [None, 208]).axes[0]
    assert [bar.get_width() for bar in shares.patches] == [75.0, 25.0]
