"""What a completion earns: the real judge behind the signature that trainers call."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math

import pytest

from lethe.audit import house
from lethe.rl import reward_fn
from lethe.rl.adapter import code_of

KERNEL = "reduction_sum__a"
GATES = ("CMP-01", "EXC-01")
"""Two of the twelve: these tests are about what an outcome earns."""


@pytest.fixture(scope="module")
def row():
    return house.load().get(KERNEL)


@pytest.fixture(scope="module")
def reward(row, tmp_path_factory):
    log = tmp_path_factory.mktemp("rl") / "rewards.jsonl"
    with reward_fn(row.problem, schedule="readme", log=log, device="cpu", gates=GATES) as made:
        yield made


def fenced(source):
    return f"Here it is:\n```python\n{source}```\nDone."


def wrong(source):
    """The kernel with its sum turned into a maximum."""
    assert "tl.sum(" in source
    return source.replace("tl.sum(", "tl.max(")


def test_ladder_over_the_real_judge(reward, row):
    good = row.candidate.source
    torch_only = row.problem.source.replace("class Model(", "class ModelNew(")
    completions = [
        fenced(good), fenced(wrong(good)), fenced("import triton\nclass ModelNew(:"), "I do not know.",
        fenced(torch_only),
    ]  # fmt: skip
    earned = reward(prompts=["?"] * 5, completions=completions, completion_ids=[[1]] * 5, trainer_state=None)
    assert [str(end.outcome) for end in reward.last] == [
        "correct_untimed", "broke_contract", "did_not_run", "did_not_run", "broke_contract",
    ]  # fmt: skip
    assert earned == [0.5, 0.1, 0.0, 0.0, 0.1]


def test_equal_sources_are_judged_once(reward, row):
    before = reward.court.throughput.judged
    chat = [{"role": "assistant", "content": fenced(row.candidate.source)}]
    assert reward(["?"] * 3, [chat, chat, fenced(row.candidate.source)]) == [0.5] * 3
    assert reward.one("?", chat, answer="", info={}) == 0.5
    assert reward.court.throughput.judged == before


def test_a_killed_run_resumes_from_its_file(reward, row, tmp_path):
    """Also one that was cut off in the middle of a line."""
    reward.one("?", fenced(row.candidate.source))
    copy = tmp_path / "rewards.jsonl"
    text = reward.court.log.read_text()
    copy.write_text(text + text.splitlines()[-1][:40])
    with reward_fn(row.problem, schedule="paper", log=copy, device="cpu", gates=GATES) as again:
        assert again.one("?", fenced(row.candidate.source)) == 1.0, "under another schedule"
        assert again.court.throughput.judged == 0
    assert all(json.loads(line)["corpus"] == "rl" for line in copy.read_text().splitlines())


def test_another_problem_is_another_question(reward, row):
    other = house.load().get("reduction_mean__a")
    earned = reward(["?"], [fenced(row.candidate.source)], problem=[other.problem])
    assert earned[0] < 0.5 and reward.last[0].outcome != "correct_untimed"


def test_a_file_name_is_not_read(reward, tmp_path, row):
    file = tmp_path / "kernel.py"
    file.write_text(row.candidate.source)
    assert reward.one("?", str(file)) == 0.0


def test_signature_is_that_of_trainers(reward):
    """TRL passes every column by keyword; verifiers tells group functions by their plural names."""
    parameters = inspect.signature(reward).parameters
    assert list(parameters)[:2] == ["prompts", "completions"]
    assert parameters["columns"].kind is inspect.Parameter.VAR_KEYWORD
    assert reward.__name__ == "lethe_readme"


def test_says_what_is_missing():
    with reward_fn(device="cpu") as bare, pytest.raises(ValueError, match="which problem"):
        bare(["?"], ["x"])
    with pytest.raises(ValueError, match="no reward schedule 'generous'; the schedules are paper, readme"):
        reward_fn(schedule="generous")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"device": "gpu"}, "unknown device 'gpu'; use auto, cpu, cuda"),
        ({"gates": ["EXC-01", "EXC-9"]}, "not 'EXC-9'"),
        ({"gates": "EXC-01"}, "gates is a list of CMP-01, .*, not 'EXC-01'"),
        ({"workers": -1}, "workers is -1; give 0"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_a_setting_that_cannot_be_used_is_refused_before_a_model_writes_anything(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        reward_fn(**settings)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [(["softmax.py"], "'problem' has 1 values for 2"), ("softmax.py", "'problem' has 'softmax.py' for 2")],
    ids=["too-short", "text"],
)
def test_a_column_has_one_value_for_each_completion(column, sentence):
    with reward_fn(device="cpu") as bare, pytest.raises(ValueError, match=sentence):
        bare(["?"] * 2, ["x"] * 2, problem=column)


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("```python\na\n```\n```\nb\n```", "b\n"),
        ("x = 1", "x = 1"),
        ([{"role": "assistant", "content": "```py\nc\n```"}], "c\n"),
        ([], ""),
        ("First:\n```bash\nls\n```\nthen\n```python\nd\n```\nthat is it", "d\n"),
        ("```python\ne\n```\n```cpp\nint e;\n```\nboth", "e\n"),
        (" ```Python title=x.py\r\nf\r\n```", "f\n"),
        ("A ```name``` in the text\n```python\ng\n```", "g\n"),
        ("```text\nno code\n```", "```text\nno code\n```"),
    ],
    ids=["last-block", "bare", "chat", "empty", "bash-first", "cpp-last", "windows", "inline", "no-python"],
)
def test_code_of_a_completion(completion, code):
    assert code_of(completion) == code


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed")
def test_trl_trains_a_step_on_it(reward, row, tmp_path):
    """TRL's own trainer with a tiny random model: the rewards that it logs are ours."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from lethe.rl.tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    settings = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, max_steps=1,
        max_completion_length=4, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1, bf16=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer), processing_class=tokenizer, reward_funcs=reward, args=settings,
        train_dataset=Dataset.from_list([{"prompt": "a kernel"}] * 4),
    )  # fmt: skip
    trainer.train()
    logged = [h for h in trainer.state.log_history if "reward" in h]
    assert logged and logged[0]["reward"] == 0.0 and not math.isnan(logged[0]["reward"])
    assert [str(end.outcome) for end in reward.last] == ["did_not_run"] * 2
