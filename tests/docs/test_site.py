"""The site builds without a warning, its links lead somewhere, and the names on its pages exist."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import PAGES, ROOT

MISSING = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]


needs_mkdocs = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install -e '.[docs]' builds the documentation"
)


def build(configuration: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict`; never with --quiet, which hides warnings from it as well."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration), "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def without_search(folder: Path) -> Path:
    """The configuration without an index and with signatures in one line, which take half of the time."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    (reference,) = (each["mkdocstrings"] for each in settings["plugins"] if "mkdocstrings" in each)
    python = reference["handlers"]["python"]
    python["options"]["separate_signature"] = False
    python["options"]["extensions"] = [str(ROOT / path) for path in python["options"]["extensions"]]
    python["paths"] = [str(ROOT / path) for path in python["paths"]]
    own = folder / "mkdocs.yml"
    changes = {
        "docs_dir": str(ROOT / settings["docs_dir"]),
        "hooks": [str(ROOT / path) for path in settings["hooks"]],
        "plugins": [{"mkdocstrings": reference}],
    }
    own.write_text(yaml.safe_dump(settings | changes), encoding="utf-8")
    return own


@pytest.fixture(scope="module", params=["without search", pytest.param("whole", marks=pytest.mark.long)])
def site(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml" if request.param == "whole" else without_search(folder), folder / "built")
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "built"


@needs_mkdocs
def test_a_broken_link_would_be_noticed(tmp_path):
    docs, links = tmp_path / "docs", ("nowhere.md", "index.md#nothing")
    docs.mkdir()
    shown = "\n\n".join(f"[a link]({link})" for link in links)
    (docs / "index.md").write_text(f"# One page\n\n{shown}\n", encoding="utf-8")
    own = tmp_path / "mkdocs.yml"
    settings = ["docs_dir: docs", "hooks: []", "plugins: []", "nav: [index.md]", "theme: {name: mkdocs}"]
    own.write_text("\n".join([f"INHERIT: {ROOT / 'mkdocs.yml'}", *settings]), encoding="utf-8")
    built = build(own, tmp_path / "site")
    assert built.returncode == 1
    assert all(link in built.stderr for link in links)


class _Addresses(HTMLParser):
    """What a page loads by itself, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.loaded.append(named.get("src") or "")
        if tag == "link" and named.get("rel") in ("stylesheet", "preload", "preconnect"):
            self.loaded.append(named.get("href") or "")


@needs_mkdocs
def test_the_site_builds_with_warnings_as_errors(site):
    assert (site / "guarantee.html").is_file()
    assert "Trainer" in (site / "reference" / "training.html").read_text(encoding="utf-8")


@needs_mkdocs
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        addresses = _Addresses()
        addresses.feed(page.read_text(encoding="utf-8"))
        assert [address for address in addresses.loaded if "//" in address] == [], page.name


@needs_mkdocs
def test_links_to_modules_lead_to_the_reference(site):
    page = (site / "paper-map.html").read_text(encoding="utf-8")
    assert 'href="reference/training.html#inosgd.training"' in page
    assert "../src" not in page


def links_of(document: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_resolve(document):
    for link in links_of(document):
        target = (document.parent / link.partition("#")[0]).resolve()
        if "://" not in link:
            assert target.exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_anchors_resolve(document):
    for link in links_of(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if anchor and "://" not in link and target.suffix == ".md":
            assert anchor in anchors_of(target), link


def anchors_of(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


IDENTIFIER = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`")
OPACUS = {"BatchMemoryManager", "DPLSTM", "DPMultiheadAttention", "ModuleValidator.fix", "PrivacyEngine.make_private"}
OPACUS |= {
    "p.grad_sample",
    "accountant.history",
    "DPOptimizer",
    "get_epsilon",
    "make_private",
    "make_private_with_epsilon",
}
OPACUS |= {"max_grad_norm", "sample_rate", "secure_mode", "target_delta", "target_epsilon"}
JAX_PRIVACY = {"BoundedSensitivityCallable", "DPExecutionPlan", "ExecutionPlanConfig", "UserSelectionStrategy"}
JAX_PRIVACY |= {"clipped_grad", "dp_event", "l2_clip_norm", "microbatch_size", "noise_addition_transform"}
JAX_PRIVACY |= {"calibrate", "normalize_by", "sampling_prob"}


@cache
def known_words() -> frozenset[str]:
    places = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    written = " ".join(path.read_text(encoding="utf-8") for path in places)
    return frozenset(re.findall(r"\w+", written)) | {path.stem for path in places} | {"py"}


def unknown_names(text: str) -> list[str]:
    """Names in code type that occur nowhere in the code, so that a page cannot outlive what it speaks of."""
    words = known_words()
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    named = sorted(set(IDENTIFIER.findall(plain)) - OPACUS - JAX_PRIVACY)
    return [name for name in named if not set(name.rstrip(".").split(".")) <= words]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_code_type_exist(document):
    assert unknown_names(document.read_text(encoding="utf-8")) == []


def test_a_name_that_does_not_exist_would_be_noticed():
    assert unknown_names("`make_plan` and `make" + "_wish(3)`") == ["make" + "_wish"]


def test_every_module_named_in_the_reference_exists():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for module in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            path = ROOT / "src" / Path(*module.split("."))
            assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module


def test_no_page_speaks_of_a_machine():
    for document in DOCUMENTS:
        assert "/work/" not in document.read_text(encoding="utf-8"), document.name


@needs_mkdocs
def test_examples_in_docstrings_are_shown_as_code(site):
    page = (site / "reference" / "training.html").read_text(encoding="utf-8")
    assert "&gt;&gt;&gt;" in page
    assert "<blockquote>\n<blockquote>" not in page


GLUED = re.compile(r"[.;:] \d\. <strong>")


def test_items_of_numbered_lists_stand_on_lines_of_their_own(site):
    """A paragraph inside an item needs four spaces and an empty line after it; else the rest of the list joins it."""
    assert [page.name for page in site.rglob("*.html") if GLUED.search(page.read_text(encoding="utf-8"))] == []
    assert GLUED.search("<p>all weights are 1. 4. <strong>Clip.</strong>")  # the control
