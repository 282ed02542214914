"""Specifications that Vega-Lite accepts, whatever the size of the study."""

from __future__ import annotations

import pytest

from inosgd.analysis.task import regression
from inosgd.errors import InosgdError, InvalidArgumentError
from inosgd.report import write_figures
from inosgd.report.charts import CHARTS, available, reading_of, specification, with_data
from inosgd.report.figures import draw, figure_files, without_hovering
from inosgd.report.marks import MOST_BARS, MOST_PANELS, evenly
from inosgd.report.tables import all_tables
from inosgd.report.theme import DARK, LIGHT, chart_config, colours
from tests.report.materials import METHODS, material_of

SIZES = {"one owner": 1, "three owners": 3, "too many for a line each": MOST_BARS + 1}


@pytest.mark.parametrize("owners", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("entry", CHARTS, ids=lambda entry: entry.name)
def test_every_chart_meets_the_schema(entry, owners):
    material = material_of(owners=owners, seeds=2, points=3)
    tables = all_tables(material)
    spec = specification(entry, material, tables, validate=True)
    switches = {each["name"]: each["value"] for each in spec["params"] if "value" in each}
    assert switches["shown_methods"] == list(material.main)
    assert len(switches["shown_owners"]) == owners
    assert len(switches["panel_owners"]) == min(owners, MOST_PANELS)
    assert with_data(spec, entry, tables)["datasets"][entry.table]


@pytest.mark.parametrize("entry", CHARTS, ids=lambda entry: entry.name)
def test_every_chart_is_drawn_and_switches_change_it(entry):
    material = material_of(owners=3, seeds=2, points=3)
    tables = all_tables(material)
    spec = with_data(specification(entry, material, tables), entry, tables)
    whole = draw(spec, "svg").decode()
    assert "NaN" not in whole
    assert whole.count("<path") + whole.count("<rect") > 5
    name = (
        "shown_owners" if entry.name in ("owners", "budgets", "change", "terms", "weights", "roc") else "shown_methods"
    )
    if entry.panels is not None and entry.panels.by_owner:
        name = "panel_owners"
    spec["params"] = [{**each, "value": each["value"][:1]} if each["name"] == name else each for each in spec["params"]]
    assert len(draw(spec, "svg")) < len(whole)


@pytest.mark.parametrize("owners", [3, MOST_BARS + 1])
def test_scores_below_zero_are_drawn_where_they_are(owners):
    """R² goes down to -1: no axis, band or track may stop at 0."""
    material = material_of(owners=owners, seeds=2, points=3, task=regression(["x"]), extras=False)
    tables = all_tables(material)
    assert min(tables["curves"]["score"]) < 0
    for entry in available(tables):
        spec = specification(entry, material, tables, validate=True)
        assert "NaN" not in draw(with_data(spec, entry, tables), "svg").decode()
        if entry.name in ("score", "progress"):
            assert "max(-1, datum." in str(spec)
    lowest = min(low for low in tables["ends"]["low"] if low is not None)
    axis = str(specification(available(tables)[0], material, tables))
    assert lowest < 0
    assert f"'domain': [{lowest:g}" in axis
    assert "classes" not in tables


def test_every_chart_says_how_to_read_it():
    for entry in CHARTS:
        for seeds in (1, 2, 3):
            read = reading_of(entry, material_of(seeds=seeds))
            assert read.endswith("."), entry.name
            assert "{" not in read
            assert ("standard deviation over" in read) <= (seeds >= 3)
    assert len({entry.name for entry in CHARTS}) == len(CHARTS)


def test_only_charts_with_numbers():
    names = [entry.name for entry in available(all_tables(material_of(methods=1, extras=False)))]
    assert names == ["owners", "score", "loss", "progress", "budgets", "terms", "classes"]


def test_evenly_keeps_both_ends():
    names = [str(number) for number in range(100)]
    assert evenly(names)[0] == "0"
    assert evenly(names)[-1] == "99"
    assert len(set(evenly(names))) == MOST_PANELS


def test_methods_keep_their_colours_and_share_none():
    for look in (LIGHT, DARK):
        both = colours(METHODS, look), colours(("ino-sgd", "another"), look)
        assert len(set(both[0])) == len(METHODS)
        assert both[0][2] == both[1][0] == look.colours["blue"]
    assert chart_config(METHODS, LIGHT)["range"]["category"] == colours(METHODS, LIGHT)


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("look", "ground"), [(LIGHT, "#ffffff"), (DARK, "#12171d")], ids=["light", "dark"])
def test_colours_stand_out_from_the_ground(look, ground):
    """Text at 4.5 : 1 and marks at 2.5 : 1 or more, as contrast is counted on the web."""
    for colour, least in ((look.text, 4.5), (look.faint, 4.5), *((each, 2.5) for each in look.colours.values())):
        bright, dim = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= least, colour


def test_figures_in_every_format(tmp_path):
    material = material_of(points=3)
    written = write_figures(material, tmp_path / "new", ("svg", "png", "pdf"), ("pareto",))
    heads = {path.suffix: path.read_bytes()[:5] for path in written}
    assert heads == {".svg": b"<svg ", ".png": b"\x89PNG\r", ".pdf": b"%PDF-"}


def test_figures_that_cannot_be_had():
    material = material_of(points=3)
    with pytest.raises(InvalidArgumentError, match="'gif' is not one of svg, png, pdf"):
        figure_files(material, ("gif",))
    with pytest.raises(InvalidArgumentError, match="'pie' is not one of owners"):
        figure_files(material, ("svg",), ("pie",))


def test_without_the_charting_packages_the_message_says_what_to_install(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InosgdError, match=r"vl_convert is not installed: pip install 'inosgd\[report\]'"):
        write_figures(material_of(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_figures_leave_out_what_only_a_pointer_finds():
    material = material_of(points=3)
    tables = all_tables(material)
    spec = specification(CHARTS[1], material, tables)
    still = without_hovering(spec)
    assert CHARTS[1].name == "score"
    assert [layer["mark"]["type"] for layer in spec["spec"]["layer"]] == ["area", "line", "point"]
    assert [layer["mark"]["type"] for layer in still["spec"]["layer"]] == ["area", "line"]
