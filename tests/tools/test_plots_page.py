"""The page of `dvc plots` needs no network."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

TEMPLATE = ROOT / ".dvc" / "plots" / "offline.html"


@pytest.fixture(scope="module")
def plots_page(tmp_path_factory):
    """Return the page that DVC makes with the committed template for two revisions of a curve."""
    folder = tmp_path_factory.mktemp("plots")

    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*command):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)

    (folder / "dvc.yaml").write_text(
        "plots:\n- Loss:\n    x: tokens\n    y:\n      a.csv: loss\n      b.csv: loss\n    y_label: nats\n"
    )
    for name in "ab":
        (folder / f"{name}.csv").write_text("tokens,loss\n0,3.5\n10,2.25\n")
    run("git", "init", "-q")
    run("dvc", "init", "-q")
    run("git", "add", "-A")
    run("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "first")
    (folder / "a.csv").write_text("tokens,loss\n0,3.5\n10,1.125\n")
    run("dvc", "plots", "diff", "--html-template", str(TEMPLATE), "HEAD")
    return (folder / "dvc_plots" / "index.html").read_text()


def test_the_page_of_plots_has_no_outside_address(plots_page):
    assert "function vegaEmbed" in plots_page and plots_page.count("vegaEmbed('#") == 1
    assert not re.search(r"(src|href)\s*=\s*.?https?:", plots_page) and "cdn" not in plots_page
    assert "{" + "plot_divs}" not in plots_page and "{" + "refresh_tag}" not in plots_page
    addresses = set(re.findall(r"https?://[^\"' ]*", plots_page))
    assert addresses == {"http://www.w3.org/2000/svg", "https://vega.github.io/schema/vega-lite/v5.json"}  # names


DOCUMENT = """
const made = { children: [] };
const element = (name) => ({ name, attributes: {}, children: [],
  setAttribute(key, value) { this.attributes[key] = String(value); }, append(child) { this.children.push(child); } });
globalThis.document = { createElementNS: (_, name) => element(name),
  querySelector: () => ({ replaceChildren: (child) => made.children.push(child) }) };
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script with")
def test_the_page_of_plots_draws_every_line(plots_page):
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", plots_page, re.S)
    program = DOCUMENT + "\n".join(scripts).replace('"use strict";', "") + "\nconsole.log(JSON.stringify(made));"
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    (chart,) = json.loads(done.stdout)["children"]
    texts = [each["textContent"] for each in chart["children"] if each["name"] == "text"]
    lines = ("workspace, a.csv, at the end 1.125", "HEAD, a.csv, at the end 2.25", "HEAD, b.csv, at the end 2.25")
    for words in (*lines, "workspace, b.csv, at the end 2.25", "tokens", "nats"):
        assert words in texts
    looks = {
        tuple(each["attributes"][name] for name in ("stroke", "stroke-width", "stroke-dasharray"))
        for each in chart["children"] if "stroke-dasharray" in each["attributes"]
    }  # fmt: skip
    assert len(looks) == 4
    points = [float(n) for each in chart["children"] for n in re.findall(r"[\d.]+", each["attributes"].get("d", ""))]
    width, height = map(float, chart["attributes"]["viewBox"].split()[2:])
    assert min(points) >= 0 and max(points) <= max(width, height)
