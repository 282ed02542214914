"""Run folders of every kind, and a browser."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from inosgd import SeededSource
from inosgd.report.extras import FILES
from inosgd.runs.resuming import begin, train_durably
from tests import tiny
from tests.report.materials import common_of, material_of, write_comparison

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOW = "`make setup-browser` installs Debian's chromium and chromium-driver"


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> Path:
    """A folder as ``inosgd compare`` writes it."""
    return write_comparison(tmp_path_factory.mktemp("compare"))


@pytest.fixture
def growing(tmp_path) -> Path:
    """A comparison with made-up results and a last line that is being written."""
    folder = tmp_path / "growing"
    folder.mkdir()
    material = material_of(methods=3)
    results = [result.to_json() for row in material.rows for result in row.results]
    lines = [json.dumps(each) for each in (common_of(material).to_json(), *results)]
    (folder / "results.jsonl").write_text("\n".join(lines) + '\n{"key": "unfin')
    return folder


@pytest.fixture
def trained(tmp_path) -> Path:
    """A run folder that stopped after eight of its twelve steps, with two evaluations."""
    run = tiny.new_run(tmp_path)
    with run.lock() as locked:
        trainer, model, optimizer = tiny.parts(run.plan())
        state = begin(locked, trainer, model, optimizer, SeededSource(0))
        train_durably(locked, trainer, state, every=4, steps=8)
        state.ledger.close()
        curve = material_of(names=("strict", "liberal")).rows[0].results[0].curve
        for step, point in zip((4, 8), curve, strict=False):
            locked.add_metrics(step, {name: value for name, value in point.to_json().items() if name != "step"})
    return run.path


@pytest.fixture
def with_extras(compared, tmp_path) -> Path:
    """A comparison with a condition, weights and an audit beside it."""
    folder = tmp_path / "with-extras"
    shutil.copytree(compared, folder)
    made_up = material_of(names=("digits 0-4", "digits 5-9"))
    for name, values in (("condition", made_up.condition), ("weights", made_up.weights), ("roc", made_up.roc)):
        content = {"ino-sgd": next(iter(values.values())), "a row that is not there": {}}
        (folder / FILES[name]).write_text(json.dumps(content))
    return folder


def _browser_or_reason():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        return None, f"no chromium or no chromedriver here; {HOW}"
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        return None, "selenium is not installed; it is among the development dependencies"
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tempfile.mkdtemp(prefix="inosgd-chromium-")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return (webdriver.Chrome(options=options, service=Service(driver)), profile), ""


@contextmanager
def browser():
    """Headless Chromium; where there is none, None and why."""
    found, reason = _browser_or_reason()
    driver, profile = found or (None, None)
    try:
        yield driver, reason
    finally:
        if found:
            driver.quit()
            shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="session")
def chromium():
    """Headless Chromium; where there is none tests skip, or fail if INOSGD_REQUIRE_BROWSER is set."""
    with browser() as (driver, reason):
        if driver is None:
            if os.environ.get("INOSGD_REQUIRE_BROWSER"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield driver


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
