"""The page in headless Chromium, opened from disk. Screenshots are left in build/screenshots."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest

from inosgd.report import write_report
from tests.report.materials import material_of
from tests.report.test_page import EVIL

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}
PATIENCE = 60.0

OVERFLOWING = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter((each) => {
  const box = each.getBoundingClientRect();
  if (box.width === 0 || box.right <= wide + 1) return false;
  for (let up = each.parentElement; up; up = up.parentElement) {
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX) && up !== document.body
        && up.getBoundingClientRect().right <= wide + 1 && !up.classList.contains("plot")) return false;
  }
  return getComputedStyle(each).position !== "absolute" || !each.classList.contains("skip");
}).map((each) => `${each.tagName}.${each.getAttribute("class")} ${each.getBoundingClientRect().right}`);
"""
TOO_WIDE = """
return [...document.querySelectorAll("section.chart")].map((each) => {
  const place = each.querySelector(".plot").clientWidth, chart = each.querySelector(".plot svg").width.baseVal.value;
  return [each.id, chart - place];
}).filter(([, excess]) => excess > 1);
"""
MARKS = """
return Object.fromEntries([...document.querySelectorAll("section.chart")].map((each) =>
  [each.id, each.querySelectorAll("svg .mark-symbol path, svg .mark-line path, svg .mark-rect path").length]));
"""


def wait_for(chromium, script, *arguments):
    """What ``script`` returns once it is true."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = chromium.execute_script(script, *arguments)
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE:g} s: {script}")


def opened(chromium, path, size=WIDTHS["desktop"], *, dark=False):
    """Open a file as the user would, and wait until its charts are drawn."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    chromium.get("about:blank")
    for kind in ("browser", "performance"):
        chromium.get_log(kind)  # what earlier pages did is not this one's
    chromium.get(path.as_uri())


def drawn(chromium, path, size=WIDTHS["desktop"], dark=False):
    opened(chromium, path, size, dark=dark)
    wait_for(chromium, "return document.body.dataset.ready === 'yes'")
    assert chromium.execute_script("return window.reportProblems") == []


def requests(chromium):
    """Everything that the page has asked for beside itself."""
    messages = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("file:", "data:", "blob:", "about:"))]


def errors(chromium):
    return [entry["message"] for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def keep_screenshot(chromium, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    height = chromium.execute_script("return document.documentElement.scrollHeight")
    width = chromium.execute_script("return document.documentElement.clientWidth")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = chromium.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_report(material_of(owners=3, points=6), tmp_path_factory.mktemp("small") / "report.html")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    material = material_of(owners=100, methods=5, seeds=2, points=8)
    return write_report(material, tmp_path_factory.mktemp("large") / "report.html")


def test_it_opens_without_errors_and_asks_nobody(chromium, small):
    drawn(chromium, small)
    assert errors(chromium) == []
    assert requests(chromium) == []


def test_a_page_that_asked_somebody_would_be_caught(chromium, tmp_path):
    path = tmp_path / "leaky.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("oh")</script>')
    opened(chromium, path)
    time.sleep(0.3)
    assert requests(chromium) == ["http://127.0.0.1:9/x.png"]
    assert any("oh" in message for message in errors(chromium))


def test_its_own_policy_stops_what_a_script_would_ask_for(chromium, small):
    drawn(chromium, small)
    requests(chromium)
    chromium.execute_script("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/y.png'}))")
    time.sleep(0.3)
    assert any("Content Security Policy" in message for message in errors(chromium))


def test_every_chart_has_marks(chromium, small):
    drawn(chromium, small)
    marks = chromium.execute_script(MARKS)
    assert len(marks) == 12
    assert all(count > 0 for count in marks.values()), marks


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.long)], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["small", "large"])
def test_nothing_overflows(chromium, request, which, width, dark):
    drawn(chromium, request.getfixturevalue(which), WIDTHS[width], dark=dark)
    keep_screenshot(chromium, f"{which}-{width}-{'dark' if dark else 'light'}")
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[width][0]
    assert chromium.execute_script(OVERFLOWING) == []
    assert chromium.execute_script(TOO_WIDE) == []


def test_something_too_wide_would_be_caught(chromium, small):
    drawn(chromium, small, WIDTHS["phone"])
    chromium.execute_script("document.querySelector('.plot').style.width = '800px'")
    assert chromium.execute_script(OVERFLOWING) != []


@pytest.mark.parametrize("which", ["small", "large"])
def test_the_first_screen_needs_no_scrolling(chromium, request, which):
    drawn(chromium, request.getfixturevalue(which))
    bottom = chromium.execute_script("return document.getElementById('summary').getBoundingClientRect().bottom")
    assert bottom <= WIDTHS["desktop"][1]


def switched(chromium, script):
    """Run ``script``, which switches something, and wait until all charts have followed."""
    before = chromium.execute_script("return Number(document.body.dataset.updates ?? 0)")
    chromium.execute_script(script)
    wait_for(chromium, "return Number(document.body.dataset.updates ?? 0) > arguments[0]", before)


def test_switching_an_owner_off_changes_the_charts(chromium, small):
    drawn(chromium, small)
    before = chromium.execute_script(MARKS)
    switched(chromium, "document.querySelector('input[data-owner=\"owner 2\"]').click()")
    after = chromium.execute_script(MARKS)
    for name in ("owners", "score", "loss", "budgets", "change", "terms", "weights", "roc"):
        assert after[name] < before[name], name
    assert after["progress"] == before["progress"]  # the worst owner is the worst of all owners
    assert chromium.execute_script("return document.getElementById('owner-count').textContent") == "2 of 3"
    switched(chromium, "document.querySelector('input[data-owner=\"owner 2\"]').click()")
    assert chromium.execute_script(MARKS) == before


def test_switching_a_method_off_changes_the_charts(chromium, small):
    drawn(chromium, small)
    before = chromium.execute_script(MARKS)
    switched(chromium, "document.querySelector('input[data-method=\"ino-sgd\"]').click()")
    after = chromium.execute_script(MARKS)
    for name in (
        "owners",
        "score",
        "loss",
        "progress",
        "budgets",
        "change",
        "pareto",
        "terms",
        "condition",
        "classes",
    ):
        assert after[name] < before[name], name


def test_switches_work_by_keyboard(chromium, small):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    drawn(chromium, small)
    before = chromium.execute_script(MARKS)["progress"]
    for _ in range(2):  # past the link that skips to the charts, to the first method
        ActionChains(chromium).send_keys(Keys.TAB).perform()
    assert chromium.execute_script("return document.activeElement.dataset.method") == "dp-sgd"
    ActionChains(chromium).send_keys(Keys.SPACE).perform()
    wait_for(chromium, "return document.body.dataset.updates === '1'")
    assert chromium.execute_script(MARKS)["progress"] < before


def test_with_many_owners_panels_follow_the_switches(chromium, large):
    drawn(chromium, large)
    titles = """return [...document.querySelectorAll('#score svg text')].map((each) => each.textContent)
        .filter((each) => each.startsWith('owner'))"""
    assert len(chromium.execute_script(titles)) == 12
    switched(
        chromium,
        """document.querySelectorAll('input[data-owner]').forEach((box) => {
            box.checked = ["owner 7", "owner 8"].includes(box.dataset.owner); });
        document.querySelector('input[data-owner="owner 7"]').dispatchEvent(new Event("change", {bubbles: true}));""",
    )
    assert chromium.execute_script(titles) == ["owner 7 (ε 1.1)", "owner 8 (ε 1.2)"]


def test_hovering_shows_numbers(chromium, small):
    drawn(chromium, small)
    chromium.execute_script("""
        const mark = document.querySelector("#pareto svg .mark-symbol path");
        const box = mark.getBoundingClientRect();
        const where = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, view: window };
        for (const kind of ["pointerover", "pointermove", "mousemove"])
            mark.dispatchEvent(new (kind.startsWith("p") ? PointerEvent : MouseEvent)(kind, where));""")
    shown = wait_for(chromium, "return document.querySelector('#vg-tooltip-element.visible')?.textContent")
    assert "overall" in shown
    assert "%" in shown


def test_dark_mode_follows_the_system_while_the_page_is_open(chromium, small):
    drawn(chromium, small)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = chromium.execute_script(ground)
    before = chromium.execute_script("return document.querySelector('#progress svg').outerHTML")
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    assert chromium.execute_script(ground) != light
    wait_for(chromium, "return document.querySelector('#progress svg')?.outerHTML !== arguments[0]", before)


def test_names_from_data_run_nothing(chromium, tmp_path):
    path = write_report(material_of(names=EVIL), tmp_path / "evil.html")
    drawn(chromium, path)
    assert chromium.execute_script("return window.broken") is None
    assert errors(chromium) == []
