"""What src and extras never do: unpickle, run remote code, or give a string to a shell."""

import ast

import pytest

from support import ROOT

FILES = sorted(
    path for folder in ("src", "extras") for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts
)
NEVER_CALLED = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "dill.load",
    "joblib.load",
    "marshal.loads",
    "yaml.load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
}
NEVER_TRUE = {"shell", "trust_remote_code", "allow_pickle"}  # options


def unsafe_calls(code: str) -> list[str]:
    """Return the calls of a program that run, or may run, what they read."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if is_unsafe(call)]


def is_unsafe(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
    if name in NEVER_CALLED:
        return True
    if any(options.get(option) == "True" for option in NEVER_TRUE):
        return True
    if name == "torch.load":
        return options.get("weights_only") != "True"
    if name.split(".")[-1] == "YAML":
        return options.get("typ") not in ("'safe'", "'rt'")
    return False


def test_no_call_is_unsafe():
    for path in FILES:
        assert unsafe_calls(path.read_text()) == [], path


@pytest.mark.parametrize(
    "call",
    [
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "pickle.load(f)",
        "pickle.Unpickler(f)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(f)",
        "ruamel.yaml.YAML(typ='unsafe')",
        "os.system(x)",
        "subprocess.run(x, shell=True)",
        "eval(x)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_unsafe_calls_are_detected(call):
    assert unsafe_calls(call) == [call]


def test_the_one_unpickler_refuses_every_class():
    unpicklers = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases):
                unpicklers.append((path.name, node))

    ((name, unpickler),) = unpicklers

    assert name == "dumps.py"
    (find_class,) = [item for item in unpickler.body if getattr(item, "name", "") == "find_class"]
    *docstring, last = find_class.body
    assert isinstance(last, ast.Raise)
    assert len(docstring) <= 1
