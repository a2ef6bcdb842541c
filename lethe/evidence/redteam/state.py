"""Cheats that depend on what came before: caches, shared buffers, counters, chance."""

from __future__ import annotations

from lethe.evidence.redteam.cheat import Cheat, on
from lethe.evidence.redteam.grounds import MATMUL, ROW_SUM, SCALE, SIGMOID, SOFTMAX, Ground

FAMILY = "state"
GROUNDS = (SCALE, SOFTMAX, ROW_SUM, MATMUL)

KEPT = "KEPT = {}"
CALLS = "CALLS = [0]"


def _everywhere(
    name: str,
    gate: str,
    wrong: str,
    top: str,
    grounds: tuple[Ground, ...] = GROUNDS,
    right: str | None = None,
) -> list[Cheat]:
    """The same cheat on each ground: VALUE is the operator, FIRST its first argument."""

    def spell(text: str, ground: Ground) -> str:
        return text.replace("VALUE", f"({ground.value})").replace("FIRST", ground.arguments[0])

    return [
        on(
            name,
            gate,
            FAMILY,
            g,
            spell(wrong, g),
            top=spell(top, g),
            right=None if right is None else spell(right, g),
        )
        for g in grounds
    ]


CHEATS = (
    *_everywhere(
        "returns_cached",
        "CMP-01",
        "if 'y' not in KEPT:\n    KEPT['y'] = VALUE\nreturn KEPT['y'].clone()",
        KEPT,
    ),
    *_everywhere(
        "memoizes_first_input",
        "CMP-01",
        "key = FIRST.reshape(-1)[0].item()\n"
        "if key not in KEPT:\n    KEPT[key] = VALUE\n"
        "return KEPT[key].clone()",
        KEPT,
    ),
    *_everywhere(
        "caches_by_identity",
        "ORD-02",
        "key = id(FIRST)\nif key not in KEPT:\n    KEPT[key] = (FIRST, VALUE)\nreturn KEPT[key][1].clone()",
        KEPT,
    ),
    *_everywhere(
        "caches_by_pointer_and_sum",
        "ORD-02",
        "key = (FIRST.data_ptr(), FIRST.sum().item())\n"
        "if key not in KEPT:\n    KEPT[key] = VALUE\n"
        "return KEPT[key].clone()",
        KEPT,
        right="key = (FIRST.data_ptr(), FIRST.sum().item())\nreturn VALUE",
    ),
    *_everywhere(
        "buffer_aliasing",
        "ORD-02",
        "y = VALUE\nkept = KEPT.setdefault(y.shape, torch.empty_like(y))\nreturn kept.copy_(y)",
        KEPT,
        right="y = VALUE\nreturn torch.empty_like(y).copy_(y)",
    ),
    *_everywhere(
        "right_ten_times",
        "ORD-02",
        "CALLS[0] += 1\nreturn VALUE if CALLS[0] % 11 else VALUE * 0.5",
        CALLS,
        right="CALLS[0] += 1\nreturn VALUE",
    ),
    *_everywhere(
        "right_sixty_times",
        "INTEGRITY",
        "CALLS[0] += 1\nreturn VALUE if CALLS[0] <= 60 else VALUE * 0.5",
        CALLS,
        right="CALLS[0] += 1\nreturn VALUE",
    ),
    *_everywhere(
        "nondeterministic",
        "ORD-02",
        "y = VALUE\nreturn y + torch.randn_like(y) * 1e-7 * y",
        "",
        right="y = VALUE\ntorch.randn_like(y)\nreturn y",
    ),
    *_everywhere(
        "dropout_in_disguise",
        "ORD-02",
        "y = VALUE\nreturn torch.nn.functional.dropout(y, 0.01, training=True)",
        "",
        right="y = VALUE\nreturn torch.nn.functional.dropout(y, 0.01, training=self.training)",
    ),
    *_everywhere(
        "rare_race",
        "ORD-02",
        "y = VALUE\nif torch.rand(()).item() < 1 / 16:\n    y.view(-1)[-1] = 0\nreturn y",
        "",
        right="y = VALUE\nreturn y",
    ),
    *_everywhere(
        "zeroes_its_inputs",
        "ORD-02",
        "y = VALUE\nFIRST.zero_()\nreturn y",
        "",
        grounds=(SCALE, SIGMOID, SOFTMAX, MATMUL),
        right="y = VALUE\nFIRST.clone().zero_()\nreturn y",
    ),
)
