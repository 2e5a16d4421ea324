"""What src and extras never do: unpickle, run remote code, or give a string to a shell."""

import ast

import pytest

from support import ROOT

FILES = sorted(
    path for folder in ("src", "extras") for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts
)
UNPICKLERS = ("pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load", "joblib.load", "marshal.loads")


def unsafe_calls(code: str) -> list[str]:
    """Return the calls of a program that run, or may run, what they read."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [ast.unparse(call) for call in calls if is_unsafe(call)]


def is_unsafe(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    options = {argument.arg: ast.unparse(argument.value) for argument in call.keywords}
    return (
        (name == "torch.load" and options.get("weights_only") != "True")
        or name in (*UNPICKLERS, "yaml.load", "eval", "exec", "os.system", "os.popen")
        or (name == "np.load" and options.get("allow_pickle") == "True")
        or (last == "YAML" and options.get("typ") not in ("'safe'", "'rt'"))
        or options.get("shell") == "True"
        or options.get("trust_remote_code") == "True"
    )


def test_no_call_is_unsafe():
    assert {path: found for path in FILES if (found := unsafe_calls(path.read_text()))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(f)", "torch.load(f, weights_only=False)", "pickle.load(f)", "np.load(f, allow_pickle=True)",
        "yaml.load(f)", "os.system(x)", "subprocess.run(x, shell=True)", "eval(x)", "pickle.Unpickler(f)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)", "ruamel.yaml.YAML(typ='unsafe')",
    ],
)  # fmt: skip
def test_unsafe_calls_are_detected(code):
    assert unsafe_calls(code) == [code]


def test_the_one_unpickler_refuses_every_class():
    trees = {path.name: ast.parse(path.read_text()) for path in FILES}
    classes = [
        (name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    ((name, unpickler),) = [(name, node) for name, node in classes if "Unpickler" in ast.unparse(node).split(":")[0]]
    (find_class,) = [item for item in unpickler.body if getattr(item, "name", "") == "find_class"]
    assert name == "dumps.py" and isinstance(find_class.body[-1], ast.Raise) and len(find_class.body) <= 2
