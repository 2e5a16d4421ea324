"""What src and extras never do, beside what ruff finds: unpickle through a library, or run remote code."""

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


def test_the_one_unpickler_refuses_every_class():
    unpicklers = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases):
                unpicklers[path.name] = node

    assert list(unpicklers) == ["dumps.py"]
    methods = [item for item in unpicklers["dumps.py"].body if isinstance(item, ast.FunctionDef)]
    (body,) = [method.body for method in methods if method.name == "find_class"]
    assert isinstance(body[-1], ast.Raise)
    assert len(body) <= 2  # a docstring before it
