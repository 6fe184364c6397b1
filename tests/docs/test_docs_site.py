"""The site: it is complete, its links work, it loads nothing from a network, and a browser shows and searches it."""

import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from generate import packages
from site_in_browser import BROWSER, FIRST, SEARCHES, look

from hpcps.spec.load import load_experiment

ROOT = Path(__file__).parents[2]

in_a_browser = pytest.mark.skipif(BROWSER is None, reason="chromium is missing: apt-get install chromium")

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements whose address a browser loads without a click."""


class Page(HTMLParser):
    """The addresses in a page, those that are loaded, and the names of its anchors."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.update(value for name, value in attributes if name in ("id", "name"))
        self.addresses += [value for name, value in attributes if name in ("href", "src") and value]
        if LOADED.get(tag) in values and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def pages(site):
    found = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(found) > 20
    return found


@pytest.mark.usefixtures("starts_processes")
def test_links_and_anchors_exist(pages):
    broken = []
    for path, page in pages.items():
        for parts in map(urlsplit, page.addresses):
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = target.is_file() and (not anchor or target not in pages or anchor in pages[target].anchors)
            if not parts.scheme and not known:
                broken.append(f"{path.name}: {parts.geturl()}")
    assert broken == []


@pytest.mark.thorough
def test_nothing_is_loaded_from_a_network(pages, site):
    loaded = [address for page in pages.values() for address in page.loaded]
    assert loaded
    assert [address for address in loaded if urlsplit(address).scheme not in ("", "data")] == []
    styles = [path for path in site.rglob("*.css") if re.search(r"(@import|url\()\s*['\"]?https?:", path.read_text())]
    assert styles == []


@pytest.mark.thorough
def test_every_generated_part_is_there(pages):
    assert [path for path in pages if "<!-- generated" in path.read_text() and path.stem != "experiment-file"] == []
    words = {
        "reference/components.html": ["trimmed_mean", "randomscale", "cifar10", "dirichlet", "mlp", "hydra"],
        "reference/command-line.html": ["hpcps run", "--only SELECTOR", "launcher/configgen.py", "--dialect"],
        "reference/python.html": ["hpcps.rules.base.Rule", "hpcps.attacks.base.Attack", "hpcps.kvstore.Client"],
        "explanation/protocol.html": ["CombinedUpdate", "COMBINED", "TensorResult", "waiting for model"],
        "how-to/extend.html": ["class ClippedMean"],
    }
    for name, wanted in words.items():
        (text,) = (path.read_text() for path in pages if path.as_posix().endswith(name))
        plain = re.sub(r"<[^>]+>|&#x27;", "", text)
        assert [word for word in wanted if word not in plain] == [], name


def test_every_line_that_includes_a_file_names_one():
    """In any other form, a page shows the line itself."""
    lines = [
        (page.name, line)
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"-- *8 *<", line)
    ]
    assert len(lines) > 10
    found = [(page, re.fullmatch(r'\s*--8<-- "([^":]+)(:\w+)?"', line)) for page, line in lines]
    assert [page for page, match in found if match is None or not (ROOT / match[1]).is_file()] == []


def closure(graph):
    return {name: packages.reachable(graph, name) for name in graph}


@pytest.mark.thorough
def test_the_diagram_shows_the_imports(site):
    """What is drawn, and what follows from it, is what the architecture test finds in the code."""
    real = {}
    architecture = runpy.run_path(str(ROOT / "tests/architecture/test_packages.py"))
    for name, other in architecture["edges"]():
        real.setdefault(name, set()).add(other)
    layers = [name for name in architecture["ORDER"] if not name.startswith("__")]
    text = (site / "explanation/architecture.html").read_text()
    drawn = {name: set() for name in layers}
    for name, other in re.findall(r'data-import="(\w+) (\w+)"', text):
        drawn[name].add(other)
    assert closure(drawn) == closure({name: real.get(name, set()) for name in layers})


def test_the_experiment_of_the_tutorial_has_the_runs_that_it_says():
    mine = ROOT / "docs/tutorial/mine.toml"
    points = load_experiment(mine).points
    assert len(points) == 4
    # A newcomer who types the change of a key sees another run, not one that is done.
    (change,) = re.findall(r"mine\.toml --set (\S+)", (mine.parent / "first-experiment.md").read_text())
    assert not {point.run_id for point in points} & {p.run_id for p in load_experiment(mine, [change]).points}


def test_links_of_the_repository_exist():
    """Of README, CONTRIBUTING and the like, which are read without the site."""
    broken = []
    for path in [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("docs/**/*.md")]:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for address in re.findall(r"\]\(([^)\s`]+)\)", text):
            parts = urlsplit(address)
            target = path.parent / parts.path if parts.path else path
            anchored = not parts.fragment or target.suffix != ".md" or parts.fragment in anchors(target)
            if not parts.scheme and not (target.exists() and anchored):
                broken.append(f"{path.relative_to(ROOT)}: {address}")
    assert broken == []


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


FOLDERS = "hpcps|tests|docs|examples|experiments|launcher|notebooks|benchmarks|results/published"
WITHIN_HPCPS = "execution|roles|rules|transport"
PATH = re.compile(rf"(?<![\w./<-])(?:\.\./)*((?:{FOLDERS})/[\w./+-]*\w|(?:{WITHIN_HPCPS})/[\w/]*\.py\b)")
MADE_LATER = re.compile(r"experiments/mine\.toml|launcher/(pbs|slurm)/site\.sh|.*/__pycache__|results/published/NAME")
"""Files that a user or a program creates."""


def paths_in(text):
    """Return the paths of the repository that a text names."""
    return {path for path in PATH.findall(text) if not MADE_LATER.fullmatch(path)}


def test_paths_that_pages_name_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, path) for page in pages for path in paths_in(page.read_text(encoding="utf-8"))}
    assert len(named) > 80
    assert ("architecture.md", "hpcps/roles/sync/partitions.py") in named
    missing = {
        (page, path) for page, path in named if not any((root / path).exists() for root in (ROOT, ROOT / "hpcps"))
    }
    assert sorted(missing) == []


@pytest.fixture(scope="module")
def found(site, tmp_path_factory):
    return look(site, tmp_path_factory.mktemp("profile"))


@in_a_browser
@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("width", [1400, 400])
def test_no_page_is_wider_than_the_window(found, width):
    shown = {page: value for page, value in found.items() if page != "search"}
    assert len(shown) > 20
    assert [page for page, value in shown.items() if not value["heading"]] == []
    assert {page: value for page, value in shown.items() if value[str(width)] > width} == {}


@in_a_browser
@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("query", SEARCHES)
def test_the_search_finds(found, query):
    """Every link of a result is one of its page: that to the page, or to a section."""
    links = [link.partition("?")[0] + link[link.find("#") :] * ("#" in link) for link in found["search"][query]]
    pages = list(dict.fromkeys(link.partition("#")[0] for link in links))[:FIRST]
    first = [link for link in links if link.partition("#")[0] in pages]
    assert [wanted for wanted in SEARCHES[query] if not any(wanted in link for link in first)] == [], pages
