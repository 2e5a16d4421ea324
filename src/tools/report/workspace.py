"""Read the records of a workspace that fit together, and draw a picture for the page."""

import base64
import dataclasses
from collections.abc import Callable
from pathlib import Path

from lm import plots
from lm.core.files import read_json
from lm.core.params import read_yaml
from tools.common import paths
from tools.common.records import LINK_CHECKS, Digests, Finding, run_checks

WIDTH = 4.6  # inches: a picture is as wide as a phone's column, so that its letters stay readable
MADE_FROM = {paths.EVAL_METRICS: paths.EVALUATION_DETAILS, paths.DATA_METRICS: paths.AUDIT_DETAILS}


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Parameters, the JSON records that fit together, and the reasons why others are left out."""

    params: dict
    presets: dict
    records: dict[Path, dict]
    left_out: dict[Path, str]
    findings: list[Finding]

    def get(self, path: Path) -> dict:
        """Return a record, {} if it is left out."""
        return self.records.get(path, {})

    def notes(self, *needed: tuple[Path, str]) -> list[str]:
        """Return a line for each (record, what is made from it) that is left out."""
        missing = [(path, what, self.left_out.get(path, "does not exist yet")) for path, what in needed]
        return [f"Left out: {what}; {path} {why}." for path, what, why in missing if path not in self.records]


def read_workspace() -> Workspace:
    """Read the parameters and the records that fit together."""
    findings = list(run_checks(LINK_CHECKS, Digests()))
    left_out = {each.blamed[-1]: "does not fit the other records, see Provenance" for each in findings if each.fault}
    every = {path for _, *needed in LINK_CHECKS for path in needed}
    records = {path: read_json(path) for path in every if path.exists() and path not in left_out}
    sha256 = records.get(paths.MODEL, {}).get("best", {}).get("sha256", "")
    score = records.get(paths.EVALUATION_DETAILS)
    if score and not sha256.startswith(score.get("weights_sha256", "missing")):
        left_out[paths.EVALUATION_DETAILS] = "is about the weights of another run; this one is not evaluated yet"
        del records[paths.EVALUATION_DETAILS]
    for path, origin in MADE_FROM.items():
        if path in records and origin not in records:
            left_out[path] = left_out.get(origin, f"was made from {origin}, which does not exist")
            del records[path]
    return Workspace(read_yaml(paths.PARAMS), read_yaml(paths.PRESETS), records, left_out, findings)


def curve(name: str) -> dict[str, list[float]]:
    """Return the columns of a file of plots/, {} if it is missing or has no rows."""
    path = paths.PLOTS / name
    return plots.read_csv(path) if path.exists() else {}


def picture(title: str, height: float, *draw_functions: Callable) -> dict:
    """Draw the panels of a picture, `height` inches in all."""
    svg = plots.to_svg(plots.figure_of(*draw_functions, size=(WIDTH, height)))
    return {"title": title, "base64": base64.b64encode(svg).decode("ascii")}
