"""The plots: a page that needs no network, a line per model, specs that vega can draw."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import vl_convert

MODELS = ("demo", "pythia-14m", "a model with a long name, 1.7B")
STEPS = (0, 1, 8, 64, 512, 4000, 32000, 143000)
FIELDS = {"agreement of top-1 with torch": "top1_strict", "KL of the worst cell": "kl_max"}
TEMPLATES = Path(__file__).resolve().parent.parent / ".dvc/plots"


def sample(factor=1.0):
    """Rows as the catalogue stage writes them; the first model's KL is 0 throughout."""
    return [
        {"model": model, "step": step, "top1": 1.0, "top1_strict": 1 - i * j / 1000, "kl_max": i * factor * 1e-7 * 2**j}
        for i, model in enumerate(MODELS)
        for j, step in enumerate(STEPS)
    ]


def write(workspace, rows):
    """Put rows where the catalogue stage puts them."""
    file = workspace.root / "data/plots/fidelity.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows))


class Page(HTMLParser):
    """What an HTML page loads, and the plots that its scripts draw."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.specs, self.inside = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        self.loads += re.findall(r"@import[^;]*|url\([^)]*\)", data) if self.inside == "style" else []
        if self.inside == "script" and (found := re.search(r"var spec = (.*);\s*vegaEmbed\('(#.*)', spec\);", data)):
            self.specs.append(json.loads(found[1]))


def titles(page):
    return [spec["title"]["text"] for spec in page.specs]


def place(output):
    """The file that the last word of an output names."""
    return Path(unquote(urlsplit(output.split()[-1]).path))


def specs(workspace, *arguments):
    """Title and spec of every plot, from DVC itself."""
    told = json.loads(workspace.dvc("plots", *arguments, "--json").stdout)
    assert "errors" not in told
    return {name: plots[0]["content"] for name, plots in told["data"].items()}


def drawn(spec):
    """The texts that are to be seen in a spec's drawing, and the d and dash of every line."""
    texts, lines = [], []
    for element in ET.fromstring(vl_convert.vegalite_to_svg(spec)).iter():
        if element.tag.endswith("}text") and element.get("fill-opacity") != "0":
            texts.append(element.text)
        if element.get("aria-roledescription") == "line mark":
            lines.append((element.get("d"), element.get("stroke-dasharray")))
    return texts, lines


@pytest.fixture(scope="module")
def made(workspace):
    """The workspace, committed, after `python -m stages.plots`; and what that said."""
    write(workspace, sample())
    workspace.run("git", "add", "--all")
    workspace.run("git", "add", "--force", "data/plots/fidelity.json")
    workspace.run("git", "commit", "-qm", "before")
    return workspace, workspace.stage("plots").stdout


@pytest.mark.parametrize("rows", [None, []])
def test_nothing_to_plot_is_one_line(made, rows):
    workspace, _ = made
    file = workspace.root / "data/plots/fidelity.json"
    file.unlink()
    if rows is not None:
        write(workspace, rows)
    done = workspace.stage("plots", check=False)
    write(workspace, sample())
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"plots: data/plots/fidelity.json .*: run `make repro`\n", done.stderr)


def test_page_has_every_row_and_loads_nothing(made):
    workspace, said = made
    assert said.count("\n") == 1
    assert place(said) == workspace.root / "dvc_plots/index.html"
    page = Page(place(said).read_text())
    assert titles(page) == list(FIELDS)
    assert page.loads == []
    for spec in page.specs:
        rows = spec["data"]["values"]
        assert [{key: row[key] for key in row if key != "rev"} for row in rows] == sample()


def test_page_carries_vega(made):
    text = place(made[1]).read_text()
    assert text.index("window.vegaEmbed=") < text.index("vegaEmbed('#")
    assert "{plot_divs}" not in text


def test_bare_dvc_is_offline_too(made):
    for command in (["show"], ["diff", "HEAD"]):
        page = Page(place(made[0].dvc("plots", *command).stdout).read_text())
        assert titles(page) == list(FIELDS)
        assert page.loads == []


def test_a_template_of_ones_own_stays(made):
    workspace, _ = made
    own = workspace.root / ".dvc/own.html"
    own.write_text("own {plot_divs}")
    workspace.dvc("config", "--local", "plots.html_template", "own.html")
    page = place(workspace.stage("plots").stdout).read_text()
    assert workspace.dvc("config", "plots.html_template").stdout.strip() == "own.html"
    assert "window.vegaEmbed=" in page
    workspace.dvc("config", "--local", "plots.html_template", "page.html")


def test_one_line_per_model(made):
    found = specs(made[0], "show")
    assert list(found) == list(FIELDS)
    for name, spec in found.items():
        texts, lines = drawn(spec)
        assert {*MODELS, name, "training step", "0", "100", "100k", "model"} <= set(texts)
        assert "revision" not in texts
        assert "workspace" not in texts
        assert len(lines) == len(MODELS)
        for d, dash in lines:
            assert len(re.findall("[ML]", d)) == len(STEPS)
            assert "NaN" not in d
            assert dash in (None, "1,0")


def test_steps_are_spread_and_kl_is_on_a_log_scale(made):
    for spec in specs(made[0], "show").values():
        d, _ = drawn(spec)[1][1]
        points = [tuple(map(float, point.split(","))) for point in re.split("[ML]", d)[1:]]
        widths = [b[0] - a[0] for a, b in zip(points[1:], points[2:], strict=False)]
        heights = [abs(b[1] - a[1]) for a, b in zip(points, points[1:], strict=False)]
        assert max(widths) < 2 * min(widths)  # each step is eight times the one before, or nearly
        assert min(heights) > 1  # pixels: not flattened by the model whose KL is 0
        assert max(heights) - min(heights) < 0.01  # KL doubles from step to step, agreement falls evenly


def test_revisions_differ_in_their_dash(made):
    workspace, _ = made
    write(workspace, sample(factor=3.0))
    found = specs(workspace, "diff", "HEAD")
    write(workspace, sample())
    for spec in found.values():
        texts, lines = drawn(spec)
        assert {*MODELS, "revision", "workspace", "HEAD"} <= set(texts)
        assert len(lines) == 2 * len(MODELS)
        assert len({dash for _, dash in lines}) == 2


def test_the_two_templates_differ_in_y_only():
    linear, log = (json.loads((TEMPLATES / name).read_text()) for name in ("by_model.json", "by_model_log.json"))
    assert [step["as"] for step in log.pop("transform")] == ["floored"]
    assert linear["encoding"].pop("y") != log["encoding"].pop("y")
    assert linear == log
