"""The pages in headless Chromium, with a real server and a real training. Screenshots are left in build/screenshots."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from inosgd.accounts.book import Accounts
from inosgd.accounts.verification import verify_book
from inosgd.ledger import Ledger
from inosgd.ledger.records import read_chain
from inosgd.owners import Budget
from inosgd.runs.folder import RunFolder
from inosgd.serve.links import make_link
from inosgd.study.running import begin_training, create_run, finish, prepare
from tests.report.test_browser import OVERFLOWING, WIDTHS, errors, keep_screenshot, requests, wait_for
from tests.serve.running import served
from tests.studies import written_study

PATIENCE = 300.0
"""Seconds until a training counts as stuck."""

AXE = Path(os.environ.get("INOSGD_AXE", Path(__file__).parents[2] / "build" / "axe" / "axe.min.js"))

UNLABELLED = """
return [...document.querySelectorAll("input:not([type=hidden]), select, button, a, progress")].filter((each) =>
  !(each.labels && each.labels.length) && !each.getAttribute("aria-label") && !each.textContent.trim()
).map((each) => each.outerHTML);
"""
HEADINGS = """
const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((each) => Number(each.tagName[1]));
return levels.filter((level) => level === 1).length === 1 && levels[0] === 1
  && levels.every((level, place) => place === 0 || level <= levels[place - 1] + 1);
"""
FAINT = """
function channel(value) { value /= 255; return value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4; }
function light(colour) { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
  return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b); }
function ground(each) { for (; each; each = each.parentElement) {
  const colour = getComputedStyle(each).backgroundColor;
  if (!colour.endsWith(", 0)") && colour !== "transparent") return colour; } return "rgb(255, 255, 255)"; }
return [...document.querySelectorAll("body *")].filter((each) =>
  [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) && each.getClientRects().length
).map((each) => { const a = light(getComputedStyle(each).color), b = light(ground(each));
  return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), each.outerHTML.slice(0, 120)]; }
).filter(([ratio]) => ratio < 4.5);
"""
SMALL = """
return [...document.querySelectorAll("button, .button, input:not([type=hidden]), select")].filter((each) =>
  each.getClientRects().length && each.getBoundingClientRect().height < 40).map((each) => each.outerHTML.slice(0, 120));
"""
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then((found) =>
  done(found.violations.map((each) => each.id + ": " + each.nodes.map((node) => node.html.slice(0, 160)).join(" | "))));
"""


class Training:
    """A real training of a study, in a thread, which takes no step before it is told to: there is time to click."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder}/accounts.db"
        account = ("[data]\n", f'account = "{url}"\n\n[data]\n')
        public = ("[model]\n", "[evaluation]\npublic = true\n\n[model]\n")
        self.url, self.error = url, None
        self._allowed, self._told = 0.0, threading.Condition()
        study = written_study(folder, account, public, ("steps = 12", "steps = 120"))
        self._study, self.path = study, folder / "spring-model"
        with Accounts.create(url) as book:
            book.open_collection("patients", study.split(0).owners.table)
        self._thread = threading.Thread(target=self._train)

    def _train(self) -> None:
        try:
            prepared = prepare(self._study)
            run = create_run(self.path, prepared)
            with run.lock() as locked:
                finish(locked, prepared, begin_training(locked, prepared), every=10, after_step=self._after)
        except BaseException as error:
            self.error = error

    def _after(self, state, _) -> None:
        with self._told:
            self._told.wait_for(lambda: state.step < self._allowed)

    def _allow(self, steps: float) -> None:
        with self._told:
            self._allowed = steps
            self._told.notify()

    def start(self) -> None:
        self._allow(1)
        self._thread.start()
        self._wait_for(1)

    def go_on(self) -> None:
        """One step more. What it heeds before that step is in the ledger when this returns."""
        steps = self.ledger.steps + 1
        self._allow(steps)
        self._wait_for(steps)

    def _wait_for(self, steps: int) -> None:
        end = time.monotonic() + PATIENCE
        while self.steps < steps:
            assert self.error is None, repr(self.error)
            assert time.monotonic() < end
            time.sleep(0.02)

    @property
    def ledger(self) -> Ledger:
        return RunFolder.open(self.path).read_ledger()

    @property
    def steps(self) -> int:
        """Those in the ledger, also while it is being made or written to."""
        try:
            return self.ledger.steps
        except (OSError, ValueError):
            return 0

    def end(self) -> None:
        """All steps that are left."""
        self._allow(math.inf)
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self.error is None, repr(self.error)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    training = Training(tmp_path_factory.mktemp("site"))
    yield training
    training.end()


@pytest.fixture(scope="module")
def site(training):
    with served(training.url) as settings:
        yield settings.origin


@pytest.fixture(scope="module")
def tokens(training):
    with Accounts.open(training.url) as book:
        owners = {name: make_link(book, "patients", name) for name in ("hospital_a", "hospital_b", "clinic")}
        return {**owners, None: make_link(book)}


def dressed(chromium, size, dark=False):
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def entered(chromium, site, token):
    """Open a personal link and press the button, with the keyboard: it has the focus."""
    chromium.delete_all_cookies()
    chromium.get("about:blank")
    for kind in ("browser", "performance"):
        chromium.get_log(kind)
    chromium.get(f"{site}/enter#{token}")
    wait_for(chromium, "return document.activeElement.textContent === 'Open my account'")
    assert token.partition(".")[2] not in chromium.current_url  # the secret is out of the address
    chromium.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(chromium, "return location.pathname === '/' && document.readyState === 'complete'")


def checked(chromium, name):
    """Nothing wider than the window, nothing without a name, nothing too faint or too small; and what axe says."""
    keep_screenshot(chromium, f"serve-{name}")
    assert chromium.execute_script(OVERFLOWING) == []
    assert chromium.execute_script(UNLABELLED) == []
    assert chromium.execute_script(HEADINGS)
    assert chromium.execute_script(FAINT) == []
    assert chromium.execute_script(SMALL) == []
    if AXE.is_file():  # `make setup-axe`
        chromium.execute_script(AXE.read_text(encoding="utf-8"))
        chromium.set_script_timeout(30)
        assert chromium.execute_async_script(RUN_AXE) == []


def words(chromium) -> str:
    return chromium.find_element(By.TAG_NAME, "main").text


def tab_to(chromium, text: str) -> None:
    """Press the tabulator until the element with this text or label has the focus, which must be seen."""
    for _ in range(60):
        chromium.switch_to.active_element.send_keys(Keys.TAB)
        found = chromium.execute_script(
            "const a = document.activeElement, label = a.labels && a.labels[0] ? a.labels[0].textContent : '';"
            "return [a.textContent.trim(), label, getComputedStyle(a).outlineStyle];"
        )
        if text in found[:2]:
            assert found[2] != "none"
            return
    raise AssertionError(f"the tabulator does not come to {text}")


def test_owners_change_budgets_while_a_training_runs_and_it_obeys(chromium, site, training, tokens):
    training.start()
    lowered_by_keyboard(chromium, site, training, tokens)
    seen_live_and_accepted(chromium, site, training, tokens)
    paused(chromium, site, training, tokens)
    training.end()
    after_the_end(chromium, site, training, tokens)


def lowered_by_keyboard(chromium, site, training, tokens):
    dressed(chromium, WIDTHS["desktop"])
    entered(chromium, site, tokens["hospital_b"])
    assert "of 100 attempts succeed" in words(chromium)
    checked(chromium, "owner-desktop-light")
    tab_to(chromium, "Lower to ε")
    chromium.switch_to.active_element.send_keys("1.5", Keys.ENTER)
    wait_for(chromium, "return location.pathname === '/change'")
    assert "Trainings that run" in words(chromium)
    assert "spring-model" in words(chromium)
    assert "cannot be given back" in words(chromium) or "stays spent" in words(chromium)
    checked(chromium, "consequence-desktop-light")
    with Accounts.open(training.url) as book:
        assert book.last_change(1) == 0  # nothing has changed before the confirmation
    tab_to(chromium, "Confirm")
    chromium.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(chromium, "return location.pathname === '/done'")
    assert "Your budget is 1.5 now" in words(chromium)
    checked(chromium, "done-desktop-light")
    assert training.steps == 1
    training.go_on()
    assert budgets(training) == [1.0, 1.5, 8.0]
    assert len(RunFolder.open(training.path).plans()) == 2
    (changed,) = [each for each in _records(training) if each["kind"] == "change"]
    assert changed["step"] == 1  # the next step was not taken under the old plan
    assert changed["account"]["entry"] > 0
    assert errors(chromium) == []
    assert all(url.startswith(site) for url in requests(chromium))


def seen_live_and_accepted(chromium, site, training, tokens):
    dressed(chromium, WIDTHS["phone"])
    entered(chromium, site, tokens["clinic"])
    chromium.find_element(By.ID, "raise").send_keys("9", Keys.ENTER)
    wait_for(chromium, "return location.pathname === '/change'")
    checked(chromium, "raise-phone-light")
    chromium.find_element(By.CSS_SELECTOR, "button.main").click()
    wait_for(chromium, "return location.pathname === '/done'")
    dressed(chromium, WIDTHS["desktop"], dark=True)
    entered(chromium, site, tokens[None])
    checked(chromium, "model-desktop-dark")
    field = "return Number(document.querySelector('[data-field=steps]').textContent)"
    before = chromium.execute_script(field)
    training.go_on()
    wait_for(chromium, f"{field} > {before}")  # live, without a reload
    assert chromium.execute_script("return document.querySelector('[data-field=state]').textContent") == "training"
    assert budgets(training) == [1.0, 1.5, 8.0]
    chromium.find_element(By.CSS_SELECTOR, "form[action='/request'] button.main").click()
    wait_for(chromium, "return document.body.textContent.includes('None.')")
    training.go_on()
    assert budgets(training) == [1.0, 1.5, 9.0]
    chromium.get(site)  # it has reserved anew, for which the page would load itself again
    chromium.find_element(By.CSS_SELECTOR, "form[action='/plan'] button").click()
    wait_for(chromium, "return location.pathname === '/plan'")
    checked(chromium, "plan-desktop-dark")
    assert errors(chromium) == []


def paused(chromium, site, training, tokens):
    dressed(chromium, WIDTHS["phone"], dark=True)
    entered(chromium, site, tokens["hospital_a"])
    checked(chromium, "owner-phone-dark")
    for action in ("pause", "resume", "pause"):
        chromium.get(f"{site}/change?action={action}")
        chromium.find_element(By.CSS_SELECTOR, "button.main").click()
        wait_for(chromium, "return location.pathname === '/done'")
    chromium.get(site)
    assert "Paused." in words(chromium)
    checked(chromium, "paused-phone-dark")
    chromium.get(f"{site}/change?action=withdraw")
    checked(chromium, "withdraw-phone-dark")
    training.go_on()
    assert training.ledger.history.terms.sampling_rates[0] == 0


def after_the_end(chromium, site, training, tokens):
    dressed(chromium, WIDTHS["phone"])
    chromium.get(site)
    checked(chromium, "ended-phone-light")
    assert "Results that are public" in words(chromium)
    entered(chromium, site, tokens[None])
    checked(chromium, "model-phone-light")
    with Accounts.open(training.url) as book:
        assert verify_book(book).findings == []
        assert book.reservations(only_open=True) == []
        collection = book.collection("patients")
        spent, whole = collection.spent, collection.rooms
        assert (spent <= whole)[whole > 0].all()
        assert book.standing("patients", "hospital_b").budget == Budget(epsilon=1.5, delta=1e-5)
    assert training.ledger.steps == 120


def test_the_page_of_strangers(chromium, site):
    dressed(chromium, WIDTHS["phone"], dark=True)
    chromium.delete_all_cookies()
    chromium.get(site)
    assert chromium.current_url == f"{site}/enter"
    checked(chromium, "enter-phone-dark")
    chromium.get(f"{site}/nothing")
    checked(chromium, "problem-phone-dark")


def budgets(training) -> list[float]:
    return training.ledger.table.epsilons.tolist()


def _records(training) -> list[dict]:
    return read_chain(RunFolder.open(training.path).ledger_path).bodies
