"""The site: built without a warning, whole, and looked at in a browser as people on phones and in the dark do."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock

import gallery
import roles
from browsers import chromium

ROOT = Path(__file__).parents[1]

#: What the site is made of.
SOURCES = ("docs", "examples", "src", "studies", "website", "mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md")
#: In the browser: images that are missing, formulas that are not drawn, and how far a page can be scrolled sideways.
LOOK = """
const broken = [...document.images].filter(i => i.complete && !i.naturalWidth && i.loading != "lazy").map(i => i.src);
const drawn = m => !m.checkVisibility() || m.getBoundingClientRect().height > 4;
const flat = [...document.querySelectorAll("math")].filter(m => !drawn(m)).length;
const raw = [...document.querySelectorAll("article p, article li")].map(p => p.textContent).filter(t => t.includes("$$"));
const page = document.scrollingElement;
return {broken, flat, raw, sideways: page.scrollWidth - page.clientWidth};
"""


class Page(HTMLParser):
    """What a page links to, and where it can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.silent: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag in ("a", "img", "script", "link") and given.get("rel") != "canonical":
            self.links += [value for name in ("href", "src") if (value := given.get(name))]
        if tag == "img" and "alt" not in given:
            self.silent.append(given.get("src") or "")


def newest(*paths: Path) -> float:
    """When something was last changed."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return max(file.stat().st_mtime for file in files if "__pycache__" not in file.parts)


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as ``make docs`` leaves it, built again if something has changed; only one process builds it."""
    built = ROOT / "site"
    with FileLock(ROOT / ".site.lock"):
        if not (built / "index.html").exists() or newest(*(ROOT / name for name in SOURCES)) > newest(built / "index.html"):
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            command = [sys.executable, "-m", "mkdocs", "build"]
            result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr[-3000:]
    return built


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


pytestmark = [pytest.mark.built, pytest.mark.timeout(900)]


@pytest.mark.builds
def test_it_is_built_without_a_warning(site: Path) -> None:
    """The first of all tests; those that look at the site are the last."""
    assert (site / "index.html").is_file()


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """Within the site, to the very heading; nothing is fetched from elsewhere."""
    broken, outside = [], set()
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outside.add(f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else parts.scheme)
                continue
            aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            aim = aim / "index.html" if aim.is_dir() else aim
            there = aim.is_file() and aim.is_relative_to(site)
            if not there or (parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].anchors):
                broken.append((path.name, link))
    assert not [link for link in broken if link[0] != "404.html"]  # whose links start at the root of a server
    assert outside <= {"https://optuna.org", "https://semver.org", "data", "mailto"}


def test_every_picture_is_described(pages: dict[Path, Page]) -> None:
    assert not [(path, page.silent) for path, page in pages.items() if page.silent]


def test_every_public_name_is_in_the_reference(pages: dict[Path, Page]) -> None:
    anchors = set().union(*(page.anchors for path, page in pages.items() if path.parent.name == "reference"))
    missing = [name for (_, name), home in roles.homes().items() if f"calibrant.{home}.{name}" not in anchors]
    assert not missing


def test_every_example_is_in_the_gallery(site: Path) -> None:
    found = gallery.examples()
    assert 12 <= len(found) <= 24
    for path in found:
        name = path.relative_to(gallery.EXAMPLES).with_suffix("")
        assert all(
            (site / "gallery" / f"{name}{end}").is_file() for end in (".html", ".py", ".ipynb", "-thumbnail.png", "-1.png")
        )


def test_every_study_has_its_page(site: Path) -> None:
    studies = [path.parent.name for path in (ROOT / "studies").glob("*/README.md")]
    assert studies
    assert all((site / "studies" / name / "index.html").is_file() for name in studies)
    listed = (site / "studies/index.html").read_text()
    assert all(f'href="{name}/index.html"' in listed for name in studies)


def errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("390,900") as chrome:
        yield chrome


@pytest.mark.parametrize("half", [0, 1])  # for two processes, which have nothing else to do by then
def test_on_a_phone(browser: Any, site: Path, pages: dict[Path, Page], half: int) -> None:
    """Every page: no error in the console, no missing picture, every formula drawn, nothing beyond the edge."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    )
    wrong = {}
    for path in sorted(pages)[half::2]:
        if path.name == "404.html":
            continue
        browser.get(path.as_uri())
        seen = browser.execute_script(LOOK)
        problems = {name: value for name, value in seen.items() if value}
        if said := errors(browser):
            problems["console"] = said
        if problems:
            wrong[str(path.relative_to(site))] = problems
    assert not wrong


def test_search_and_keyboard(browser: Any, site: Path) -> None:
    """The slash opens the search, which finds a loss without a server; the first stop of Tab skips to the content."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.set_window_size(1200, 900)
    browser.get((site / "index.html").as_uri())
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert "md-skip" in browser.switch_to.active_element.get_attribute("class")
    body.send_keys("/")
    box = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    WebDriverWait(browser, 60).until(lambda page: page.switch_to.active_element == box)
    box.send_keys("AdaFocal")
    # What is found first may be that of half a word, and be replaced while we look at it.
    found = "return [...document.querySelectorAll('.md-search-result__link')].some(a => /adafocal/i.test(a.href))"
    assert WebDriverWait(browser, 60).until(lambda page: page.execute_script(found))
    assert not errors(browser)


def test_light_and_dark(browser: Any, site: Path) -> None:
    from selenium.webdriver.common.by import By

    browser.set_window_size(1200, 900)
    for scheme, dark in (("light", False), ("dark", True)):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get((site / "index.html").as_uri())
        browser.execute_script("localStorage.clear()")
        browser.refresh()
        colour = browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
        assert (max(red, green, blue) < 80) == dark, (scheme, colour)
