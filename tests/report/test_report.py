"""The report, opened in a real browser."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browsers import chromium
from calibrant.cli import main
from calibrant.errors import InputError
from calibrant.report import Report, write_report
from calibrant.report.words import headline
from calibrant.runs import Run, RunFolder, StudyFolder, Summary


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "digits"
    command = ["compare", "digits-lt", "--quiet", "--losses", "ce", "cals-alm", "adafocal", "--seeds", "2", "--epochs", "4"]
    assert main([*command, "--curves", "test", "--out", str(folder), "--report"]) == 0
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("1100,900") as chrome:
        yield chrome


def open_page(browser: Any, path: Path) -> None:
    browser.get(f"file://{path.resolve()}")
    assert browser.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_it_opens_and_shows_everything(browser, study: Path) -> None:
    open_page(browser, study / "report.html")
    assert (study / "report.html").stat().st_size < 6e6
    headings = [h.text for h in browser.find_elements("tag name", "h2")]
    assert len(headings) == 11
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].map(c => c.querySelectorAll('svg').length)"
    )
    assert len(drawn) >= 14
    assert all(drawn)
    text = browser.find_element("tag name", "header").text
    assert "points on average (2 runs each)" in text
    summary = json.loads((study / "study.json").read_text())["summaries"]
    cell = browser.find_element("css selector", "#table tbody tr:nth-child(2) td:nth-child(4)").text
    assert cell.startswith(f"{100 * np.mean(summary[1]['before']['ece']):.2f}\n± ")
    browser.set_window_size(1280, 900)
    inside, outside = browser.execute_script(
        "const t = document.getElementById('table'); return [t.offsetWidth, t.parentElement.clientWidth]"
    )
    assert inside <= outside  # nothing of the table is off screen
    tops = browser.execute_script(
        "return [...document.querySelectorAll('#histogram .chart')].map(c => c.layout.yaxis.range[1])"
    )
    assert len(set(tops)) == 1  # histograms can be compared


def test_the_table_sorts(browser, study: Path) -> None:
    open_page(browser, study / "report.html")

    def column(number: int) -> list[str]:
        return [c.text for c in browser.find_elements("css selector", f"#table tbody td:nth-child({number})")]

    browser.find_element("css selector", "#table th:nth-child(3) button").click()
    values = [float(text.split()[0]) for text in column(3)]
    assert values == sorted(values)
    assert browser.find_element("css selector", "#table th:nth-child(3)").get_attribute("aria-sort") == "ascending"
    browser.switch_to.active_element.send_keys("\n")  # by keyboard, the heading has the focus
    values = [float(text.split()[0]) for text in column(3)]
    assert values == sorted(values, reverse=True)
    browser.find_element("css selector", "#table th:nth-child(1) button").click()
    assert column(1) == ["adafocal", "cals-alm", "ce"]
    before = column(3)
    headings = "#table th"
    assert browser.find_elements("css selector", headings)[-1].text == "ΔECE, % (p)"
    rows = StudyFolder(study).result()
    shown = dict(zip(column(1), column(len(browser.find_elements("css selector", headings))), strict=True))
    assert shown["ce"] == ""
    assert float(shown["cals-alm"].split()[0]) == pytest.approx(100 * rows["cals-alm"].difference("ece"), abs=0.006)
    browser.find_element("id", "post").click()
    assert column(3) != before
    assert browser.find_elements("css selector", headings)[-1].text == "ECE, T by ECE, %"
    how = [item.text for item in browser.find_elements("css selector", "#how li")]
    assert sum("ΔECE: difference in ECE from ce in points" in item for item in how) == 1  # however often the table is drawn


def test_hovering_shows_the_numbers_of_a_bin(browser, study: Path) -> None:
    from selenium.webdriver import ActionChains

    open_page(browser, study / "report.html")
    chart = browser.find_element("id", "reliability-0")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    bins = Report(study).content["methods"][0]["bins"]
    fullest = int(np.argmax(bins["counts"]))
    place = browser.execute_script(
        "const c = arguments[0], a = c._fullLayout.xaxis, y = c._fullLayout.yaxis, r = c.getBoundingClientRect();"
        "return [a._offset + a.d2p(arguments[1]) - r.width / 2, y._offset + y.d2p(arguments[2]) - r.height / 2]",
        chart,
        (fullest + 0.5) / len(bins["counts"]),
        min(bins["accuracy"][fullest], bins["confidence"][fullest]) / 2,
    )
    ActionChains(browser).move_to_element_with_offset(chart, *map(int, place)).pause(0.5).perform()
    shown = browser.execute_script("return arguments[0].querySelector('.hoverlayer').textContent", chart)
    assert f"{bins['counts'][fullest]:,} predictions" in shown
    assert f"accuracy {100 * bins['accuracy'][fullest]:.1f}%" in shown


def test_methods_can_be_chosen(browser, study: Path) -> None:
    open_page(browser, study / "report.html")
    assert len(browser.find_elements("css selector", "#reliability .chart")) == 3
    browser.find_element("css selector", "input[data-method='ce']").click()
    assert len(browser.find_elements("css selector", "#reliability .chart")) == 2
    assert len(browser.find_elements("css selector", "#table tbody tr")) == 2
    assert browser.execute_script("return document.getElementById('scatter').data.map(t => t.name)") == [
        "cals-alm",
        "adafocal",
    ]
    browser.find_element("css selector", "input[data-method='ce']").click()
    assert len(browser.find_elements("css selector", "#reliability .chart")) == 3


def test_any_class_can_be_picked(browser, study: Path) -> None:
    from selenium.webdriver.support.ui import Select

    open_page(browser, study / "report.html")
    Select(browser.find_element("id", "pick-class")).select_by_visible_text("7")
    names = browser.execute_script("return document.getElementById('multipliers').data.map(t => t.name)")
    assert names == ["largest", "mean", "smallest", "7"] * 2  # of every run
    for seed in (0, 1):
        values = browser.execute_script(f"return document.getElementById('multipliers').data[{4 * seed + 3}].y")
        with np.load(study / f"cals-alm-seed{seed}" / "learned.npz") as learned:
            np.testing.assert_allclose(values, learned["multipliers"][:, 7], atol=1e-6)


def test_curves_of_the_test_part_and_of_bins(browser, study: Path) -> None:
    from selenium.webdriver.support.ui import Select

    open_page(browser, study / "report.html")
    histories = [RunFolder(study / f"ce-seed{seed}").history() for seed in (0, 1)]
    about = browser.find_element("css selector", "#t-epochs + p").text
    assert "never used for training or checkpoint selection" in about
    Select(browser.find_element("id", "pick-part")).select_by_visible_text("test")
    values = browser.execute_script("return document.getElementById('epochs').data[0].y")
    want = [50 * sum(rows[i]["test_ece"] for rows in histories) for i in range(4)]
    np.testing.assert_allclose(values, want, atol=1e-3)
    runs = [RunFolder(study / f"ce-seed{seed}").bins() for seed in (0, 1)]
    values = browser.execute_script("return document.getElementById('paths-1').data[0].y")
    np.testing.assert_allclose(values, 50 * sum(run.of("validation").error[:, 7] for run in runs), atol=1e-2)
    Select(browser.find_element("id", "pick-what")).select_by_visible_text("confidence, independent, top")
    Select(browser.find_element("id", "pick-bin")).select_by_visible_text("bin 3")
    assert len(browser.find_elements("css selector", "#paths .chart")) == 1
    names = browser.execute_script("return document.getElementById('paths-0').data.map(t => t.line.dash || '')")
    assert names == ["", "dot"] * 3
    values = browser.execute_script("return document.getElementById('paths-0').data[1].y")
    np.testing.assert_allclose(values, sum(run.of("train").confidence[:, 3] for run in runs) / 2, atol=1e-5)
    Select(browser.find_element("id", "pick-gamma")).select_by_visible_text("adafocal, seed 1")
    values = browser.execute_script("return document.getElementById('g-gamma').data[2].y")
    with np.load(study / "adafocal-seed1" / "learned.npz") as learned:
        np.testing.assert_allclose(values, learned["gammas"][:, 2], atol=1e-5)


def test_light_dark_and_phone(browser, study: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(browser, study / "report.html")
    style = "return getComputedStyle(document.body).backgroundColor"
    first = browser.execute_script(style)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(style) != first
    browser.set_window_size(400, 800)
    time.sleep(1)  # charts follow the window with a delay, which may be longer on a slow machine
    fits = "const all = document.documentElement; return all.scrollWidth <= all.clientWidth + 1"
    assert WebDriverWait(browser, 60).until(lambda page: page.execute_script(fits))  # wide tables scroll by themselves
    browser.set_window_size(1100, 900)


NASTY = "</script><script>document.title = 'broken'</script><img src=x onerror=\"document.title='broken'\">"


def test_what_comes_from_data_is_text(browser, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(200, 3))
    names = np.array([NASTY, "<b>bold</b>", "a & b"])
    np.savez(tmp_path / "p.npz", logits=logits, target=np.arange(200) % 3, classes=names)
    shutil.copy(tmp_path / "p.npz", tmp_path / "x<img src=x onerror=alert(1)>.npz")
    sources = [str(tmp_path / "p.npz"), str(tmp_path / "x<img src=x onerror=alert(1)>.npz")]
    assert main(["report", *sources, "--output", str(tmp_path / "r.html")]) == 0
    open_page(browser, tmp_path / "r.html")
    assert browser.title == "Calibration report"
    assert not browser.find_elements("css selector", "img, b")
    assert NASTY in json.dumps(Report(*sources).content).encode().decode("unicode_escape")
    assert "x<img src=x onerror=alert(1)>" in browser.find_element("id", "table").text


def test_of_a_run_and_of_files(browser, study: Path, tmp_path: Path) -> None:
    assert main(["report", str(study / "ce-seed0"), "--output", str(tmp_path / "run.html")]) == 0
    open_page(browser, tmp_path / "run.html")
    assert not browser.find_elements("id", "scatter")
    assert not browser.find_element("id", "choose").is_displayed()
    assert "ce-seed0: confidence is off by" in browser.find_element("tag name", "header").text
    recipe = browser.execute_script("return document.getElementById('recipe').textContent")
    assert "ratio: 20" in recipe
    shutil.copy(study / "ce-seed0/predictions/test.npz", tmp_path / "a.npz")
    assert (
        main(
            ["evaluate", str(tmp_path / "a.npz"), "--output", str(tmp_path / "m.json"), "--report", str(tmp_path / "e.html")]
        )
        == 0
    )
    open_page(browser, tmp_path / "e.html")
    assert not browser.find_elements("id", "epochs")


# Without a browser


def test_the_page_needs_no_network(study: Path) -> None:
    page = (study / "report.html").read_text()
    own = re.sub(r"<script>/\*.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page)
    assert len(own) > 10_000


def test_figures_are_written(study: Path, tmp_path: Path) -> None:
    assert main(["report", str(study), "--output", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures")]) == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    stems = {"reliability", "accuracy-vs-ece", "bars", "epochs", "epochs-test", "bins", "multipliers", "gammas-adafocal"}
    assert names == {f"{stem}.{ending}" for stem in stems for ending in ("pdf", "png")}
    assert (tmp_path / "figures/epochs.pdf").read_bytes()[:4] == b"%PDF"
    (tmp_path / "r.html").write_text("of yesterday")
    assert main(["report", str(study), "--output", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text() == (study / "report.html").read_text()


def summary(method: str, ece: float, accuracy: float, difference: float = 0.0, p: float | None = None) -> Summary:
    found = {} if p is None else {"ece": {"difference": difference, "low": difference - 0.01, "high": difference + 0.01}}
    values = {"ece": [ece, ece], "accuracy": [accuracy, accuracy]}
    return Summary(method, [0, 1], values, values, [1.0, 1.0], {} if p is None else {"ece": p}, found)


def test_the_headline_says_how_much_and_how_sure() -> None:
    rows = [summary("ce", 0.08, 0.90), summary("cals-alm", 0.02, 0.92, 0.055, 0.001)]
    gap = "The gap is 5.5 points"
    assert headline(rows) == [
        "cals-alm is best calibrated: its confidence is off by 2.0 points on average (2 runs each).",
        f"ce is off by 8.0. {gap} (95% interval 4.5 to 6.5, over seeds), more than chance explains.",
        "Its accuracy, 92.0%, is 2.0 points higher than that of ce.",
    ]
    rows = [summary("ce", 0.08, 0.90), summary("ls", 0.07, 0.90, 0.01, 0.4)]
    off = "its confidence is off by 7.0 points on average (2 runs each)"
    assert headline(rows)[0] == f"ls comes first, though perhaps by chance: {off}."
    assert headline(rows)[1].endswith(
        "The gap is 1.0 points (95% interval 0.0 to 2.0, over seeds), which chance could explain."
    )
    assert headline(rows)[2].endswith("is the same as that of ce.")
    alone = [replace(row, seeds=[0]) for row in rows]
    assert headline(alone)[1].endswith("With one run each, this compares these two networks, not the methods.")
    assert headline(rows[:1])[0].startswith(f"The confidence of {rows[0].method} is off by ")


def test_reports_from_python(study: Path, tmp_path: Path) -> None:
    report = Report(study)
    assert repr(report).endswith("15 bins': ce, cals-alm, adafocal)")
    assert report.html() == (study / "report.html").read_text()
    report.write(tmp_path / "r.html")
    with pytest.raises(InputError, match="r.html already exists; .*pass `force=True` to replace it"):
        report.write(tmp_path / "r.html")
    (tmp_path / "r.html").write_text("of yesterday")
    write_report(tmp_path / "r.html", [study], force=True)
    assert (tmp_path / "r.html").read_text() == report.html()
    (tmp_path / "reliability.pdf").write_text("of yesterday")
    with pytest.raises(InputError, match="reliability.pdf already exists"):
        report.write_figures(tmp_path)


def test_a_report_of_audits(study: Path) -> None:
    run = Run.load(study / "ce-seed0")
    found = Report(run.test, run.folder, run.folder.predictions(), run.result.at("after")).content
    assert [method["name"] for method in found["methods"]] == ["test", "ce-seed0", "test (2)", "test after temperature"]
    first, second, third, after = found["methods"]
    assert first["values"] == second["values"]
    assert first["bins"]["counts"] == third["bins"]["counts"]
    assert after["values"]["ece"] == second["values_after"]["ece"]
    assert [method["runs"] for method in found["methods"]] == [1] * 4
    assert found["sections"]["epochs"]
    assert [sentence.split(":")[0] for sentence in found["headline"]] == [method["name"] for method in found["methods"]]


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", logits=np.eye(3)[[0, 1, 0, 1]] * 3, target=np.array([0, 1, 1, 1]))  # nobody is of class 2
    report = Report(tmp_path / "p.npz")
    data = json.loads(re.search(r'id="data">(.*?)</script>', report.html(), re.DOTALL)[1])
    assert data["methods"][0]["classes"][2]["accuracy"] is None
    assert data["methods"][0]["classes"][0]["accuracy"] == 1


def test_nothing_to_report(tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "is neither a study nor a run folder" in capsys.readouterr().err
