"""Verdicts, contracts and rows for people, within 80 columns; colour never carries meaning alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lethe.verifier.verdict import CANDIDATE_FAULTS, Finding, GateResult, GateStatus, Status, Verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lethe.verifier.contract import Contract

STATUS_WORDS = {
    GateStatus.PASS: ("pass", "cyan"),
    GateStatus.FAIL: ("FAIL", "bold red"),
    GateStatus.NOT_APPLICABLE: ("n/a", "dim"),
    GateStatus.ERROR: ("error", "yellow"),
}


SHOWN_OF_A_REMARK = 38
"""Characters of the table's last column; a longer finding is repeated in full below the table."""


def exit_code(verdict: Verdict) -> int:
    """0 every applicable gate passes, 1 a contract is violated, 3 it could not be judged."""
    if verdict.violated:
        return 1
    return 0 if verdict.clean else 3


def worst_of(result: GateResult) -> str:
    """The gate's worst error/bound ratio, or the mechanism of its worst finding."""
    if result.findings:
        worst = worst_finding(result)
        if worst.channel == "B" and worst.metric is not None and worst.bound:
            return f"{worst.metric / worst.bound:.3g}x"
        return worst.mechanism
    ratio = result.measured.get("worst_ratio")
    return "" if ratio is None else f"{ratio:.2g}x"


def worst_finding(result: GateResult) -> Finding:
    """The finding to show first: a tolerance-free one, else the largest error/bound ratio."""

    def weight(f: Finding) -> tuple[bool, float]:
        return f.channel == "T", (f.metric or 0.0) / f.bound if f.bound else 0.0

    return max(result.findings, key=weight)


def remark(result: GateResult) -> str:
    """One line on a gate: its worst finding, or why it did not apply or decide."""
    if result.findings:
        worst = worst_finding(result)
        more = f" (+{len(result.findings) - 1})" if len(result.findings) > 1 else ""
        return f"{worst.case}{more}: {worst.message}"
    if result.status is GateStatus.NOT_APPLICABLE:
        return f"{(result.reason or '').replace('_', ' ')}{': ' + result.detail if result.detail else ''}"
    if result.status is GateStatus.ERROR:
        return f"{result.whose or 'unknown'}: {result.detail}"
    return result.detail


def sentence(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    message = verdict.message.strip().rstrip(".")
    if verdict.failed:
        names = ", ".join(verdict.failed)
        extra = " and an integrity probe" if verdict.integrity else ""
        return f"Contract violated: {verdict.candidate} breaks {names}{extra}."
    if verdict.integrity:
        return f"Contract violated: {verdict.candidate}: {verdict.integrity[0].message.rstrip('.')}."
    if verdict.status in CANDIDATE_FAULTS:
        return f"Contract violated: {verdict.candidate} did not run ({verdict.status}): {message}."
    passed = sum(g.status is GateStatus.PASS for g in verdict.gates)
    undecided = [g.gate for g in verdict.gates if g.status is GateStatus.ERROR]
    if verdict.status is not Status.JUDGED:
        return f"Could not be judged ({verdict.status}): {message}."
    if undecided:
        return f"Could not be judged fully: {', '.join(undecided)} ended in an error; {passed} gates pass."
    if not passed:
        return f"Could not be judged: no gate applies to {verdict.problem}."
    missing = sum(g.status is GateStatus.NOT_APPLICABLE for g in verdict.gates)
    left = f"; {missing} {'does' if missing == 1 else 'do'} not apply" if missing else ""
    kept = "the one applicable gate passes" if passed == 1 else f"all {passed} applicable gates pass"
    return f"{verdict.candidate} keeps its contract: {kept}{left}."


def show_verdict(verdict: Verdict, console: Console) -> None:
    """The table of gates, integrity findings, and the verdict in one sentence."""
    from rich.text import Text

    how = (
        f"{verdict.executor}, profile {verdict.profile}" if verdict.executor else f"profile {verdict.profile}"
    )
    console.print(Text(f"{verdict.candidate} against {verdict.problem} ({how})"), soft_wrap=True)
    if verdict.gates:
        console.print(_gate_table(verdict))
        for g in verdict.gates:
            if g.status in (GateStatus.FAIL, GateStatus.ERROR) and len(remark(g)) > SHOWN_OF_A_REMARK:
                console.print(Text(f"In full, {g.gate}: {remark(g)}".replace("\n", " ")), soft_wrap=True)
    for f in verdict.integrity:
        console.print(Text(f"INTEGRITY {f.case}: {f.message}", style="bold red"), soft_wrap=True)
    for name, why in verdict.unprobed.items():
        console.print(Text(f"Not probed, {name}: {why}"), soft_wrap=True)
    if verdict.sizes:
        sizes = ", ".join(f"{k}={v}" for k, v in verdict.sizes.items())
        console.print(Text(f"Sizes shrunk to fit the budget: {sizes}"), soft_wrap=True)
    console.print(Text(sentence(verdict), style="bold"), soft_wrap=True)
    if verdict.counterexample:
        console.print(Text(f"Counterexample: {verdict.counterexample}"), soft_wrap=True)
    for gate, told in verdict.counterexamples.items():
        if "none" in told:
            console.print(Text(f"No counterexample for {gate}: {told['none']}"), soft_wrap=True)


def _gate_table(verdict: Verdict) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, expand=False, pad_edge=False, padding=(0, 1), width=80)
    table.add_column("gate", width=6, no_wrap=True)
    table.add_column("status", width=6, no_wrap=True)
    table.add_column("cases", width=5, justify="right", no_wrap=True)
    table.add_column("worst", width=11, no_wrap=True, overflow="ellipsis")
    table.add_column("finding", no_wrap=True, overflow="ellipsis", ratio=1)
    for g in verdict.gates:
        word, style = STATUS_WORDS[g.status]
        table.add_row(
            g.gate,
            Text(word, style=style),
            str(g.cases) if g.cases else "",
            Text(worst_of(g)),
            Text(remark(g).replace("\n", " ")),
        )
    return table


def show_gates(contracts: tuple[Contract, ...], console: Console) -> None:
    """The twelve contracts: id, name, channel and what a kernel guarantees."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), width=min(console.width, 110))
    table.add_column("gate", no_wrap=True)
    table.add_column("name", width=13)
    table.add_column("ch.", no_wrap=True)
    table.add_column("a kernel that passes guarantees", ratio=1)
    for c in contracts:
        table.add_row(c.identifier, c.name, str(c.channel), c.postcondition)
    console.print(table)
    console.print(
        "T: no tolerance anywhere; B: a derived bound. One gate in full: lethe gates ID", soft_wrap=True
    )


def show_contract(c: Contract, console: Console) -> None:
    """One contract in its eight parts, with the crosswalk."""
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False, width=min(console.width, 100))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(ratio=1)
    table.add_row("identifier", f"{c.identifier} {c.name} (channel {c.channel})")
    for part in (
        "scope",
        "precondition",
        "postcondition",
        "tolerance",
        "oracle",
        "measurement",
        "violation",
        "crosswalk",
    ):
        table.add_row(part, getattr(c, part))
    console.print(table)


def report(verdict: Verdict, per_gate: int = 3) -> str:
    """A verdict as plain text for a test log: the sentence, then each finding with metric and bound."""
    where = ", ".join(
        filter(None, (verdict.executor, f"profile {verdict.profile}", f"rules {verdict.rules}"))
    )
    lines = [sentence(verdict), f"  ({where})"]
    for g in verdict.gates:
        if g.status is GateStatus.ERROR:
            lines.append(f"  {g.gate} error, {remark(g)}")
        if g.status is not GateStatus.FAIL:
            continue
        lines.append(f"  {g.gate} {_plural(len(g.findings), 'finding')} in {_plural(g.cases, 'case')}")
        lines += [f"    {_finding_line(f)}" for f in g.findings[:per_gate]]
        if len(g.findings) > per_gate:
            lines.append(f"    and {len(g.findings) - per_gate} more")
    lines += [f"  INTEGRITY {_finding_line(f)}" for f in verdict.integrity]
    if verdict.counterexample:
        lines.append(f"  counterexample: {verdict.counterexample}")
    return "\n".join(lines)


def _finding_line(f: Finding) -> str:
    measure = ""
    if f.metric is not None and f.bound is not None:
        times = f", {f.metric / f.bound:.3g} times" if f.bound else ""
        measure = f" [{f.metric:.3g} > {f.bound:.3g}{times}]"
    return f"{f.case}: {f.message}{measure}".replace("\n", " ")


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")
