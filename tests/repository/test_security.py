"""src and extras never unpickle through a library and never run remote code, beside what ruff finds."""

import ast

from support import ROOT

FILES = [path for folder in ("src", "extras") for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts]


def is_unsafe(call: ast.Call) -> bool:
    """Return True for a call that runs, or may run, what it reads."""
    name = ast.unparse(call.func)
    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
    if "True" in (options.get("trust_remote_code"), options.get("allow_pickle")):
        return True
    if name == "torch.load":
        return options.get("weights_only") != "True"
    if name.split(".")[-1] == "YAML":
        return options.get("typ") not in ("'safe'", "'rt'")
    return name == "joblib.load"


def test_no_call_is_unsafe():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Call) and is_unsafe(node)), (path, ast.unparse(node))
