"""Sections: the parts of a page that are text and tables; they need no script to be read."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inosgd.analysis.answers import NEXT, Answer, untold
from inosgd.analysis.differences import FEWEST_PAIRS
from inosgd.analysis.findings import Finding
from inosgd.analysis.score import Score
from inosgd.analysis.suggestions import AGAIN, COMPARED
from inosgd.analysis.summary import MeanSd, mean_sd
from inosgd.compare.results import Result
from inosgd.compare.views import judged_owners
from inosgd.owners import plural
from inosgd.report.material import Material, MethodRow, OwnerFacts
from inosgd.report.tables import Table, rows_of, spread_name
from inosgd.report.verdicts import held_out_interval, leaders, mean_of, worst_owner
from inosgd.shown import BUDGET, EXACT, SPENT, rounded_up
from inosgd.study.description import guarantee, never_covered

LISTED_OWNERS = 6
LISTED_FINDINGS = 6

AUDITED = (
    "The membership audit: its curves come from training data without any noise. They are for the owner of the model; "
    "do not publish them."
)

COMMANDS = {
    "compare": "the same model under the same budgets, by several methods",
    "train": "one model, trained under individual budgets",
}


def text(value: object) -> str:
    """A value from a run, as text of a page."""
    return html.escape(str(value))


def unbroken(words: object) -> str:
    """A sentence of ours as text of a page, in which no percent sign begins a line."""
    return text(words).replace(" %", "\u00a0%")


def scored(score: Score, value: MeanSd, results: Sequence[Result], measure: str) -> str:
    """A score with its standard deviation over at least three seeds, or else its interval from held-out counts."""
    if len(results) >= FEWEST_PAIRS:
        return f"{unbroken(score.shown(value.mean))} <small>{score.shown_spread(value.sd)}</small>"
    within = held_out_interval(results[0].final, measure)
    ends = "" if within is None else f"<br><small>{score.shown_range(*within)}</small>"
    return f"{unbroken(score.shown(value.mean))}{ends}"


def answers_list(material: Material) -> str:
    """What is asked first, with suggestions as a list; empty if nothing was answered."""
    if not material.answers:
        return ""
    lines = "".join(
        f"<dt>{text(each.question)}</dt><dd{_BAD if each.good is False else ''}>{_answer(each, material)}</dd>"
        for each in material.answers
    )
    return f'<dl class="answers">{lines}</dl>'


_BAD = ' class="bad"'


def _answer(answer: Answer, material: Material) -> str:
    if answer.question != NEXT or not material.suggestions:
        return unbroken(answer.text)
    tried = "".join(
        f"<li><b>{text(each.text)}</b> {unbroken(each.because)} <small>{unbroken(each.cost)}</small></li>"
        for each in material.suggestions
    )
    again = AGAIN if material.kind == "train" else COMPARED
    return f"<ol>{tried}</ol><small>{text(again)}</small>"


def findings_list(findings: Sequence[Finding]) -> str:
    """What to know before anything else, the gravest first; empty if there is nothing."""
    if not findings:
        return ""
    lines = "".join(f"<li>{unbroken(each.text)}</li>" for each in findings[:LISTED_FINDINGS])
    hidden = len(findings) - LISTED_FINDINGS
    more = f"<li>and {hidden} more</li>" if hidden > 0 else ""
    return f'<ul class="findings">{lines}{more}</ul>'


def first_screen(material: Material) -> str:
    """What was trained, on whose data, the verdict, and overall and worst owner of each method."""
    grave = "".join(f'<p class="warning">{text(each)}</p>' for each in material.unaccounted if _is_grave(each))
    return (
        f'<p class="kicker">inosgd {material.kind}: {COMMANDS[material.kind]}</p>'
        f"<h1>{text(material.title)}</h1>"
        f'<p class="lead">{text(_sentence(material.description))}</p>'
        f'<p class="verdict">{unbroken(material.verdict)}</p>{grave}{answers_list(material)}'
        f"{findings_list(_not_answered(material))}"
        f'<div class="first"><div>{_scoreboard(material)}</div><div>{_owners(material)}{_facts(material)}</div></div>'
    )


def cell_summary(material: Material) -> str:
    """Title, verdict, answers and scores for a notebook, in its own style."""
    style = "<style>.inosgd-cell .hide-narrow { display: none; } .inosgd-cell ol { margin: 0; }</style>"
    told = f"<h3>{text(material.title)}</h3><p><b>{unbroken(material.verdict)}</b></p>{answers_list(material)}"
    return f'<div class="inosgd-cell">{style}{told}{_scoreboard(material)}</div>'


def _not_answered(material: Material) -> Sequence[Finding]:
    return untold(material.findings, material.suggestions) if material.kind == "train" else material.findings


def _is_grave(note: str) -> bool:
    return note.split(":")[0].isupper()


def _sentence(description: str) -> str:
    words = description[:1].upper() + description[1:]
    return words if words.endswith(".") or not words else f"{words}."


def _scoreboard(material: Material) -> str:
    rows = [row for row in material.main_rows if row.results]
    if not rows:
        return (
            '<p class="empty">How the model does is not known: no examples were held out, or none judged it yet. '
            "In a study file, <code>[data.held_out]</code> holds some out.</p>"
        )
    overall = {row.label: mean_of(row.results, "overall") for row in rows}
    worst = {row.label: mean_of(row.results, "worst") for row in rows}
    evaluated = material.evaluated_main
    best = (set(leaders(evaluated, "overall")), set(leaders(evaluated, "worst"))) if len(rows) > 1 else (set(), set())
    score = material.score
    body = "".join(_score(material, row, overall, worst, best) for row in rows)
    return (
        '<div class="scroll"><table><thead><tr><th>method</th><th class="number">overall</th>'
        f'<th class="number">worst owner</th><th class="hide-narrow">{score.name}: ○ worst owner, ● overall, from '
        f"{score.shown(score.lowest)} to {score.shown(1.0)}</th></tr>"
        f"</thead><tbody>{body}</tbody></table></div>{_small_print(material)}"
    )


def _small_print(material: Material) -> str:
    """What stands beside scores, and what bold means."""
    seeds = material.seeds
    first = " of the first seed" if seeds > 1 else ""
    beside = (
        f"±: standard deviation over {seeds} seeds."
        if seeds >= FEWEST_PAIRS
        else f"Small: confidence interval (level 0.95) by the number of held-out examples{first}."
    )
    bold = " Bold: the highest, and what is tied with it within chance." if len(material.evaluated_main) > 1 else ""
    return f'<p class="small-print">{beside}{bold}</p>'


def _score(
    material: Material,
    row: MethodRow,
    overall: dict[str, MeanSd],
    worst: dict[str, MeanSd],
    best: tuple[set[str], set[str]],
) -> str:
    whole, least = overall[row.label], worst[row.label]
    score = material.score
    places = 100 * score.place(least.mean), 100 * score.place(whole.mean)
    left, right = sorted(places)
    strong = [' class="number best"' if row.label in each else ' class="number"' for each in best]
    colour = f'data-colour="{material.main.index(row.label)}"'
    return (
        f'<tr><th scope="row"><span class="swatch" {colour}></span>{text(row.label)} <small>plan: {text(row.variant)}'
        f"</small></th><td{strong[0]}>{scored(score, whole, row.results, 'overall')}</td>"
        f"<td{strong[1]}>{scored(score, least, row.results, 'worst')}<br>"
        f"<small>{text(worst_owner(row.results))}</small></td>"
        f'<td class="hide-narrow"><div class="track" {colour}>'
        f'<i style="left:{left:.1f}%;width:{right - left:.1f}%"></i>'
        f'<b style="left:{places[1]:.1f}%"></b><b class="worst" style="left:{places[0]:.1f}%"></b></div>'
        "</td></tr>"
    )


def _owners(material: Material) -> str:
    owners = material.owners
    if len(owners) <= LISTED_OWNERS:
        lines = "".join(
            f"<li><span>{text(owner.name)}</span><span>{_budget(owner, material.unit)}</span></li>" for owner in owners
        )
        return f'<h2>On whose data</h2><ul class="owners">{lines}</ul>'
    first, last = owners[0], owners[-1]
    median = owners[(len(owners) - 1) // 2]
    lines = "".join(
        f"<li><span>{text(owner.name)} <small>({words})</small></span><span>{_budget(owner, material.unit)}</span></li>"
        for owner, words in ((first, "strictest"), (median, "median"), (last, "most liberal"))
    )
    return f'<h2>On the data of {len(owners)} owners</h2><ul class="owners">{lines}</ul>'


def _budget(owner: OwnerFacts, unit: str) -> str:
    size = "" if owner.examples is None else f", {owner.examples:,} {text(plural(unit))}"
    return f"ε {owner.epsilon:g}{size}"


def _facts(material: Material) -> str:
    return f"<dl>{''.join(f'<dt>{text(name)}</dt><dd>{text(value)}</dd>' for name, value in material.facts)}</dl>"


def switches(material: Material) -> str:
    """Checkboxes for methods, which are the legend as well, and for owners."""
    methods = "".join(
        f'<label><input type="checkbox" checked data-method="{text(label)}">'
        f'<span class="swatch" data-colour="{number}"></span>{text(label)}</label>'
        for number, label in enumerate(material.main)
    )
    return f'<div role="group" aria-label="Methods and owners">{methods}{_owner_switches(material)}</div>'


def _owner_switches(material: Material) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" checked data-owner="{text(owner.name)}">{text(owner.name)}'
        f"<small>ε {owner.epsilon:g}</small></label>"
        for owner in material.owners
    )
    count = len(material.owners)
    search = '<input type="search" id="find-owner" placeholder="find an owner" aria-label="Find an owner">'
    return (
        f'<details class="pick"><summary>Owners <span id="owner-count">{count} of {count}</span></summary>'
        f'<div class="sheet"><div class="tools">{search if count > LISTED_OWNERS else ""}'
        '<button type="button" data-set="on">All</button><button type="button" data-set="off">None</button></div>'
        f'<div class="list">{boxes}</div></div></details>'
    )


def not_covered(material: Material) -> str:
    """What is promised, and what is not."""
    audited = (AUDITED,) if material.roc else ()
    notes = "".join(
        f"<li>{text(note)}</li>" for note in (*material.unaccounted, *audited, *never_covered(material.unit))
    )
    report = (
        "This page: it names owners, their budgets and exact results on held-out examples. To hand it on "
        "is to publish them."
    )
    return (
        f"<h2>What is promised</h2><p>{text(guarantee(material.unit))}</p><h2>What the guarantee does not cover</h2>"
        f"<ul>{notes}<li>{report}</li></ul>"
    )


def numbers(material: Material, tables: dict[str, Table]) -> str:
    """The numbers behind the charts as tables, closed at first."""
    score = material.score
    owner_headings = ("method", "owner", BUDGET, SPENT, score.name, spread_name(material), "held out", "loss")
    parts = [
        _table(caption, headings, rows)
        for caption, headings, rows in (
            ("Every owner", owner_headings, _owner_numbers(material, tables)),
            ("Every method and plan", _ROW_HEADINGS, _row_numbers(score, tables)),
            ("Other measures at the end", *_other_measures(material)),
        )
        if rows
    ]
    return f"<h2>All numbers</h2>{''.join(parts)}" if parts else ""


_ROW_HEADINGS = ("method", "plan", "overall", "worst owner", "imbalance")


def _owner_numbers(material: Material, tables: dict[str, Table]) -> list[list[str]]:
    spent = {(row["method"], row["owner"]): row["spent"] for row in rows_of(tables.get("spending", {}))}
    ends = {(row["method"], row["owner"]): row for row in rows_of(tables.get("ends", {}))}
    budgets = {owner.name: owner.epsilon for owner in material.owners}
    score = material.score
    return [
        [
            method,
            owner,
            f"{budgets[owner]:g}",
            _spent(spent.get((method, owner))),
            *_end_cells(ends.get((method, owner)), score),
        ]
        for method, owner in dict.fromkeys((*ends, *spent))
    ]


def _end_cells(row: Mapping[str, Any] | None, score: Score) -> list[str]:
    """Score, its spread, how many held-out examples, and loss."""
    if row is None:
        return [""] * 4
    spread = "" if row["low"] is None else score.shown_range(row["low"], row["high"])
    return [score.shown(row["score"]), spread, f"{row['held_out']:,}", _number(row["loss"], ".3f")]


def _row_numbers(score: Score, tables: dict[str, Table]) -> list[list[str]]:
    return [
        [row["method"], row["plan"], *(_number(row[name], score.form) for name in ("overall", "worst", "imbalance"))]
        for row in rows_of(tables.get("pareto", {}))
    ]


def _other_measures(material: Material) -> tuple[tuple[str, ...], list[list[str]]]:
    """Every measure of all examples and of each owner, the mean over seeds; empty where it is not defined in all."""
    rows: list[list[str]] = []
    names: list[str] = []
    for label, results in material.evaluated_main.items():
        finals = [result.final for result in results]
        names = names or list(finals[0].measures)
        groups = {"all": [final.measures for final in finals]}
        groups |= {owner: [final.owners[owner].measures for final in finals] for owner in judged_owners(results)}
        for group, found in groups.items():
            values = [mean_defined([each.get(name) for each in found]) for name in names]
            rows.append([label, group, *(_number(value, ".4g") for value in values)])
    return ("method", "owner", *(name.replace("_", " ") for name in names)), rows if names else []


def mean_defined(values: Sequence[float | None]) -> float | None:
    """The mean over seeds; None if a value is not defined."""
    defined = [value for value in values if value is not None]
    return mean_sd(defined).mean if len(defined) == len(values) else None


def _spent(value: float | None) -> str:
    return "" if value is None else rounded_up(value, EXACT)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    words = 2
    head = "".join(f"<th{'' if n < words else ' class=number'}>{text(each)}</th>" for n, each in enumerate(headings))
    body = "".join(
        "<tr>"
        + "".join(f"<td{'' if n < words else ' class=number'}>{text(each)}</td>" for n, each in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<details><summary>{text(caption)}</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></details>"
    )
