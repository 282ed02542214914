"""The page as a file: self-contained, small, and safe whatever owners are called."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import stat
from html.parser import HTMLParser

import pytest

from inosgd.analysis.findings import Finding
from inosgd.analysis.task import multi_label, regression
from inosgd.report import read_runs, write_report
from inosgd.report.charts import CHARTS, reading_of
from inosgd.report.page import page, safe_json
from inosgd.report.sections import first_screen, numbers
from inosgd.report.tables import all_tables
from inosgd.study.description import guarantee, never_covered
from tests.report.materials import material_of

MOST_BYTES = 6_000_000
EVIL = ("</script><script>window.broken = 1</script>", "<img src=x onerror='window.broken=1'>", 'a"b & <b>c</b>')


class Elements(HTMLParser):
    """Every element with its attributes; the text of scripts and styles is left alone."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def text() -> str:
    return page(material_of())


def payload_of(text):
    return json.loads(re.search(r'<script type="application/json" id="payload">(.*?)</script>', text, re.S)[1])


def test_it_refers_to_nothing_outside(text):
    for tag, attributes in Elements(text).found:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:,")), (tag, value)
    policy = next(each["content"] for _, each in Elements(text).found if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert "@import" not in text[: text.index("payload")]


def test_it_says_what_is_promised_and_what_is_not(text):
    for words in (
        guarantee(),
        *never_covered(),
        "Seeded runs: not for publication.",
        "To hand it on is to publish them",
    ):
        assert html.escape(words) in text
    assert "do not publish them" in text  # there is an audit on the page
    assert "do not publish them" not in page(material_of(extras=False))


def test_every_chart_is_explained(text):
    for entry in CHARTS:
        assert html.escape(reading_of(entry, material_of())) in text


def test_it_is_about_the_study_and_not_about_the_paper(text):
    shown = text[: text.index("<script")]
    assert f"<h1>{html.escape(material_of().title)}</h1>" in shown
    assert not re.search(r"\bpaper\b|Fig\. \d|Thm\.|Sec\. \d", shown)


def test_the_first_screen_has_the_verdict_and_both_numbers_of_each_method(text):
    material = material_of()
    first = text[text.index('<header id="summary">') : text.index("</header>")].replace("\u00a0", " ")
    assert html.escape(material.verdict) in first
    for row in material.rows:
        worst = sum(result.final.worst for result in row.results) / len(row.results)
        overall = sum(result.final.overall for result in row.results) / len(row.results)
        assert f"{100 * overall:.1f} %" in first
        assert f"{100 * worst:.1f} %" in first


def test_numbers_are_on_the_page_without_a_script(text):
    table = text[text.index('<section class="prose" id="numbers">') : text.index("<footer>")]
    assert table.count("<tr>") == 1 + 4 * 3 + 1 + 4


def test_findings_stand_on_the_first_screen():
    found = [Finding("at-chance", f"owner {n}", f"Owner {n} <b> is at chance.", {}) for n in range(8)]
    first = first_screen(dataclasses.replace(material_of(), findings=tuple(found)))
    assert first.index('class="verdict"') < first.index("Owner 0 &lt;b&gt; is at chance.") < first.index("<table>")
    assert "and 2 more" in first
    assert "Owner 7" not in first
    assert 'class="findings"' not in first_screen(material_of())  # the control


def test_other_measures_are_among_the_numbers():
    material = material_of(task=regression(["x"], ranges=[(0, 10)]), owners=2, methods=2)
    table = numbers(material, all_tables(material))
    assert "<summary>Other measures at the end</summary>" in table
    assert "<th class=number>rmse</th>" in table
    assert table.count("<tr>") == 1 + 2 * 2 + 1 + 2 + 1 + 2 * 3
    assert "Other measures" not in numbers(material_of(), all_tables(material_of()))


@pytest.mark.parametrize("task", [regression(["x", "y"]), multi_label(["x", "y"])], ids=["regression", "labels"])
def test_scores_that_are_no_shares_have_no_percent(task):
    material = material_of(task=task, extras=False)
    text = page(material)
    first = text[text.index('<header id="summary">') : text.index("</header>")]
    assert f"{material.evaluated['ino-sgd'][0].final.scored_by}" in first
    assert not re.search(r"\d %|\d%(?!;|\")", first), first  # but for places in a style
    charts = payload_of(text)["charts"]
    shown = {name: json.dumps(charts[name]) for name in ("owners", "score", "progress", "change", "pareto")}
    assert not [name for name, spec in shown.items() if "%" in spec]
    assert "%" in json.dumps(payload_of(page(material_of(extras=False)))["charts"]["owners"])  # the control


def test_names_from_data_stay_text():
    text = page(material_of(names=EVIL))
    tags = [tag for tag, _ in Elements(text).found]
    assert "img" not in tags
    assert tags.count("script") == 3
    assert payload_of(text)["owners"] == list(EVIL)


def test_plain_json_would_have_ended_the_script():
    assert "</script" in json.dumps(EVIL)
    assert "</script" not in safe_json(EVIL)
    assert json.loads(safe_json([*EVIL, "\u2028"])) == [*EVIL, "\u2028"]


def test_five_methods_five_seeds_a_hundred_owners():
    text = page(material_of(owners=100, methods=5, seeds=5, points=22))
    assert len(text.encode()) < MOST_BYTES
    assert "Panels of 12 owners" in text
    assert "On the data of 100 owners" in text


def test_it_is_written_for_its_user_only(trained, tmp_path):
    path = write_report(read_runs([trained]), tmp_path / "deep" / "page.html")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]


def test_a_training_without_evaluations_has_a_page(trained):
    (trained / "metrics.jsonl").unlink()
    text = page(read_runs([trained]))
    assert "Nothing was measured on held-out examples" in text
    assert set(payload_of(text)["charts"]) == {"budgets", "terms"}
