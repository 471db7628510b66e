"""The report in a real browser: what it shows, and what pointer, keys and slider do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_made_runs import CLASSES, SENTENCES, image_atoms, text_atoms, write_run, write_runs
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from atomsep.importance.colours import diverging
from atomsep.report.page import write_report

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
IMAGES, TEXT, MIXTURES = "Flowers: Atom", "CoLA: Atom", "Gaussian mixtures"

Browser = webdriver.Chrome


PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
MISSING = (
    f"the report was not tested in a browser: {' and '.join(PROGRAMS)} are not both installed "
    f"(Debian: apt-get install chromium chromium-driver)"
)
FOUND = all(PROGRAMS.values())

if not FOUND and os.environ.get("ATOMSEP_BROWSER") != "required":
    pytest.skip(MISSING, allow_module_level=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser without a window. In CI, ATOMSEP_BROWSER=required makes a missing one an error."""
    assert FOUND, MISSING
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(PROGRAMS["chromedriver"]))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_runs(root)
    write_report(root, root / "report.html")
    return root / "report.html"


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    resize(browser, 1280)
    browser.get(report.as_uri())
    return browser


def forget(browser: Browser) -> None:
    """Drop what was logged before."""
    browser.get_log("browser")
    browser.get_log("performance")


def resize(browser: Browser, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def at(page: Browser, selector: str) -> Any:
    return page.find_element(By.CSS_SELECTOR, selector)


def choose_run(page: Browser, start: str) -> None:
    menu = Select(at(page, "#run"))
    [title] = [o.text for o in menu.options if o.text.startswith(start)]
    menu.select_by_visible_text(title)


def press(page: Browser, *keys: str) -> None:
    ActionChains(page).send_keys(*keys).perform()


def set_threshold(page: Browser, hundredths: int) -> None:
    at(page, "#threshold").send_keys(Keys.HOME, Keys.ARROW_RIGHT * hundredths)


def point_at_token(page: Browser, canvas: Any, row: int, column: int) -> None:
    """Move the pointer to the middle of a token of a 3 x 5 grid."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    width, height = canvas.size["width"], canvas.size["height"]
    x, y = (column + 0.5) / 5 - 0.5, (row + 0.5) / 3 - 0.5  # from the middle of the canvas
    ActionChains(page).move_to_element_with_offset(canvas, x * width, y * height).perform()


def pixels(page: Browser, name: str) -> np.ndarray[Any, Any]:
    """Red, green, blue and opacity of a canvas, once the image is decoded."""
    script = """
        const done = arguments[1], canvas = document.querySelector(arguments[0]);
        const read = () => {
          if (canvas.width !== 22) return requestAnimationFrame(read);
          const {data, height, width} = canvas.getContext("2d").getImageData(0, 0, 22, 13);
          done([...data]);
        };
        read();
    """
    return np.array(page.execute_async_script(script, f"canvas.{name}")).reshape(13, 22, 4)


def token_of_each_pixel(charges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The charge of the token that a pixel's centre lies in, (3, 5) to (13, 22)."""
    rows = ((np.arange(13) + 0.5) * 3 / 13).astype(int)
    columns = ((np.arange(22) + 0.5) * 5 / 22).astype(int)
    return charges[rows[:, None], columns]


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_requested_nothing_fails_and_nothing_overflows(
    browser: Browser, report: Path, width: int
) -> None:
    resize(browser, width)
    forget(browser)
    browser.get(report.as_uri())
    for start in (MIXTURES, IMAGES, TEXT):
        choose_run(browser, start)
        across = browser.execute_script("return document.documentElement.scrollWidth")
        assert across <= width, start
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
        and event["params"]["documentURL"] == report.as_uri()  # not the browser's own first page
    ]
    assert report.as_uri() in requests
    assert not [url for url in requests if not url.startswith(("file:", "data:"))]
    assert browser.get_log("browser") == []
    assert browser.title == "atomsep report", "no text from the data has run as a script"


def test_the_policy_refuses_what_the_page_does_not_bring(page: Browser) -> None:
    """Otherwise the absence of requests would prove nothing."""
    forget(page)
    page.execute_script("""
        const image = document.createElement("img");
        image.src = "http://localhost:9/x.png";
        const script = document.createElement("script");
        script.textContent = "document.title = 'owned'";
        document.body.append(image, script);
    """)
    messages = [entry["message"] for entry in page.get_log("browser")]
    assert len([m for m in messages if "Content Security Policy" in m]) == 2
    assert page.title == "atomsep report"


def test_pointing_at_an_image_reads_the_charge(page: Browser) -> None:
    choose_run(page, IMAGES)
    charges = image_atoms().charges[0]
    for name in ("input", "charges"):
        for row, column in ((0, 0), (1, 3), (2, 4)):
            point_at_token(page, at(page, f"canvas.{name}"), row, column)
            sign = "+" if charges[row, column] > 0 else "−" if charges[row, column] < 0 else ""
            number = f"{sign}{abs(charges[row, column]):.3f}"
            expected = f"Row {row + 1}, column {column + 1}: charge {number}"
            assert at(page, "#readout").text == expected


def test_arrows_move_between_the_tokens_of_an_image(page: Browser) -> None:
    choose_run(page, IMAGES)
    at(page, "canvas.charges").send_keys(Keys.HOME)
    places = []
    for key in ("", Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.END):
        press(page, key)
        places.append(at(page, "#readout").text.partition(":")[0])
    assert places == [
        *("Row 1, column 1", "Row 1, column 2", "Row 2, column 2"),
        *("Row 2, column 1", "Row 1, column 1", "Row 3, column 5"),
    ]


def test_the_slider_hides_tokens_of_an_image_and_colours_are_the_packages(page: Browser) -> None:
    choose_run(page, IMAGES)
    atoms = image_atoms()
    charges, image = atoms.charges[0], atoms.images[0].transpose(1, 2, 0)
    over = token_of_each_pixel(charges)
    for hundredths in (0, 35, 100):
        set_threshold(page, hundredths)
        shown = np.abs(charges) >= hundredths / 100
        assert at(page, "#threshold-value").text == f"{hundredths / 100:.2f}"
        assert at(page, "#shown").text == f"{shown.sum()} of 15 tokens shown"
        visible = np.abs(over) >= hundredths / 100
        for name, expected in (("input", image), ("charges", diverging(over))):
            found = pixels(page, name)
            assert ((found[..., 3] == 255) == visible).all(), name
            assert (found[visible][:, :3] == expected[visible]).all(), name
            assert (found[~visible][:, 3] == 0).all(), name


def test_a_sample_is_chosen_by_pointer_and_by_keys(page: Browser) -> None:
    choose_run(page, IMAGES)
    atoms = image_atoms()
    buttons = page.find_elements(By.CSS_SELECTOR, "#list button")
    assert len(buttons) == 6
    assert at(page, "#sample-title").text == "Sample 1: rose, predicted correctly"
    buttons[3].click()
    assert at(page, "#sample-title").text == f"Sample 4: rose, predicted as {CLASSES[1]}"
    assert (pixels(page, "input")[..., :3] == atoms.images[3].transpose(1, 2, 0)).all()
    press(page, Keys.ARROW_LEFT)
    assert at(page, "#sample-title").text == "Sample 3: lily, predicted correctly"
    colours = diverging(token_of_each_pixel(atoms.charges[2]))
    assert (pixels(page, "charges")[..., :3] == colours).all()
    press(page, Keys.HOME)
    assert at(page, "#sample-title").text.startswith("Sample 1:")
    assert at(page, "#list button[aria-current]") == page.switch_to.active_element


def test_a_sentence_reads_as_it_was_written(page: Browser) -> None:
    choose_run(page, TEXT)
    atoms = text_atoms()
    assert atoms.tokens is not None
    for place, sentence in enumerate(SENTENCES):
        page.find_elements(By.CSS_SELECTOR, "#list button")[place].click()
        shown = page.execute_script("return document.querySelector('.tokens').textContent")
        assert shown == f"[CLS]{sentence}[SEP]"
        tokens = page.find_elements(By.CSS_SELECTOR, ".token")
        assert len(tokens) == len(atoms.tokens[place])
        for token, charge in zip(tokens, atoms.charges[place], strict=False):
            colour = token.value_of_css_property("background-color").replace("rgba(", "rgb(")
            assert colour.startswith("rgb({}, {}, {}".format(*diverging(charge).tolist()))
        special = page.find_elements(By.CSS_SELECTOR, ".token.special")
        assert [token.text for token in special] == ["[CLS]", "[SEP]"]
    assert page.title == "atomsep report"


def test_pointer_keys_and_slider_on_a_sentence(page: Browser) -> None:
    choose_run(page, TEXT)
    atoms = text_atoms()
    tokens = page.find_elements(By.CSS_SELECTOR, ".token")
    charges = atoms.charges[0][: len(tokens)]

    def charge(place: int) -> str:
        sign = "+" if charges[place] > 0 else "−" if charges[place] < 0 else ""
        return f"charge {sign}{abs(charges[place]):.3f}"

    ActionChains(page).move_to_element(tokens[3]).perform()
    assert at(page, "#readout").text == f"“sa”: {charge(3)}"
    page.execute_script("arguments[0].focus()", tokens[3])
    press(page, Keys.ARROW_RIGHT)
    assert page.switch_to.active_element == tokens[4]
    assert at(page, "#readout").text == f"“t.”: {charge(4)}"
    set_threshold(page, 45)
    hidden = np.abs(charges) < 0.45
    assert 0 < hidden.sum() < len(tokens), "the test can fail"
    for token, away in zip(tokens, hidden, strict=True):
        assert token.value_of_css_property("color").endswith(", 0)") == away
    assert at(page, "#shown").text == f"{(~hidden).sum()} of {len(tokens)} tokens shown"


def test_mixtures_show_their_values(page: Browser) -> None:
    choose_run(page, MIXTURES)
    texts = [token.text for token in page.find_elements(By.CSS_SELECTOR, ".token")]
    assert texts == ["−2.000", "−1.556", "−1.111", "−0.667", "−0.222"]
    assert at(page, "#sample-title").text == "Sample 1: 0, predicted correctly"


def test_the_legend_makes_a_method_stand_out(page: Browser) -> None:
    at(page, ".legend button[data-row='1']").send_keys("")  # focuses it
    section = at(page, "section:has(.legend)")
    for curve in section.find_elements(By.CSS_SELECTOR, ".curve"):
        faint = "faint" in curve.get_attribute("class")
        assert faint == (curve.get_attribute("data-row") != "1")


def test_verdicts_are_written_in_their_colour(page: Browser) -> None:
    """With a rim of the page's colour, which keeps lines behind the text away from it."""
    colour = at(page, "span.verdict.better").value_of_css_property("color")
    text = at(page, "text.verdict.better")
    shown = {name: text.value_of_css_property(name) for name in ("fill", "stroke")}
    paper = at(page, "body").value_of_css_property("background-color")
    assert [value.replace("rgba", "rgb").split(",")[:2] for value in shown.values()] == [
        value.replace("rgba", "rgb").split(",")[:2] for value in (colour, paper)
    ]
    assert colour != paper


def test_wide_pictures_can_be_read_on_every_screen(browser: Browser, tmp_path: Path) -> None:
    """One column of the page is too narrow for them; a narrow screen scrolls them."""
    files = ["wide.png", "small.png"]
    folder = write_run(tmp_path, "mnist-gan", "plain", 0, 50.0, files=files)
    Image.new("L", (1080, 300), 7).save(folder / "wide.png")
    Image.new("L", (500, 300), 7).save(folder / "small.png")
    write_report(tmp_path, tmp_path / "report.html")
    for width, (least, most) in ((1280, (1050, 1088)), (800, (700, 768)), (390, (640, 720))):
        resize(browser, width)
        browser.get((tmp_path / "report.html").as_uri())
        wide, small = browser.find_elements(By.CSS_SELECTOR, ".pictures img")
        assert least <= wide.size["width"] <= most, width
        assert small.size["width"] <= min(500, width)
        assert wide.size["height"] == pytest.approx(wide.size["width"] * 300 / 1080, abs=1)
        across = browser.execute_script("return document.documentElement.scrollWidth")
        assert across <= width


# Milliseconds that each of some changes takes, until the page is laid out.
TIMES = """
    const [selector, change] = arguments, times = [];
    for (const element of document.querySelectorAll(selector)) {
      const steps = change === "click" ? [0] : [...Array(101).keys()];
      for (const step of steps) {
        const start = performance.now();
        if (change === "click") element.click();
        else {
          element.value = step / 100;
          element.dispatchEvent(new Event("input"));
        }
        void document.body.offsetHeight;
        times.push(performance.now() - start);
      }
    }
    return times;
"""
AT_ONCE = 200
"""Milliseconds below which a change seems immediate; one takes a few."""


def test_five_hundred_samples(browser: Browser, tmp_path: Path) -> None:
    """The list has all of them, the page draws one, and nothing stalls."""
    atoms = image_atoms(500, 14, 14)
    patches = replace(atoms, charges=atoms.charges.reshape(500, 196), images=square(500))
    for experiment, kept in (("flowers", atoms), ("pets", patches)):
        root = tmp_path / experiment
        write_run(root, experiment, "atom", 0, 0.5, atoms=kept, classes=CLASSES)
        other = image_atoms(20)
        write_run(root, experiment, "atom-no-neutrality", 0, 0.5, atoms=other, classes=CLASSES)
        write_report(root, root / "report.html")
        forget(browser)
        browser.get((root / "report.html").as_uri())
        assert len(browser.find_elements(By.CSS_SELECTOR, "#run option")) == 1
        assert "1 more run is not in the explorer" in at(browser, "main").text
        assert len(browser.find_elements(By.CSS_SELECTOR, "#list button")) == 500
        assert len(browser.find_elements(By.CSS_SELECTOR, "canvas")) == 2, "patches are maps too"
        for selector, change, count in (
            ("#threshold", "input", 101),
            ("#list button", "click", 500),
        ):
            times = browser.execute_script(TIMES, selector, change)
            assert len(times) == count
            assert max(times) < AT_ONCE, (selector, max(times))
        assert at(browser, "#sample-title").text.startswith("Sample 500:")
        assert at(browser, "#shown").text.endswith("of 196 tokens shown")
        at(browser, "#list button[aria-current]").send_keys(Keys.HOME)
        assert at(browser, "#sample-title").text.startswith("Sample 1:")
        assert browser.get_log("browser") == []


def square(count: int) -> np.ndarray[Any, Any]:
    """Images of a model for patches, 28 x 28."""
    return np.random.default_rng(0).integers(0, 256, (count, 3, 28, 28), dtype=np.uint8)
