"""Check that the code has no unsafe unpickling, no remote code, no shell and no output outside the repository."""

import ast
from pathlib import Path

from support import ROOT

FILES = sorted(
    path for folder in ("src", "extras") for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts
)


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Return (dotted name as written, node) for every call in a file."""
    tree = ast.parse(path.read_text())
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def keyword(call: ast.Call, name: str) -> str | None:
    """Return a keyword argument as it is written, or None."""
    return next((ast.unparse(argument.value) for argument in call.keywords if argument.arg == name), None)


def forbidden(name: str, call: ast.Call) -> str | None:
    """Return why a call is unsafe, or None."""
    last = name.rpartition(".")[2]
    if name in ("torch.load",) and keyword(call, "weights_only") != "True":
        return "torch.load without weights_only=True"
    if name in ("pickle.load", "pickle.loads", "pickle.Unpickler", "dill.load", "joblib.load", "marshal.loads"):
        return "unpickling that runs what it reads"
    if last == "load" and name.startswith("np.") and keyword(call, "allow_pickle") not in (None, "False"):
        return "np.load with pickles"
    if name == "yaml.load" and (len(call.args) < 2 or ast.unparse(call.args[1]) != "_Loader"):
        return "yaml.load without the safe loader"
    if last == "YAML" and keyword(call, "typ") not in ("'safe'", "'rt'"):
        return "ruamel.yaml without a safe type"
    if name in ("eval", "exec", "os.system", "os.popen") or keyword(call, "shell") not in (None, "False"):
        return "code or a shell from a string"
    if keyword(call, "trust_remote_code") not in (None, "False"):
        return "trust_remote_code"
    return None


def test_no_call_is_unsafe():
    unsafe = [
        (f"{path.relative_to(ROOT)}:{call.lineno}", why)
        for path in FILES for name, call in calls(path) if (why := forbidden(name, call))
    ]  # fmt: skip
    assert unsafe == []


def test_unsafe_calls_are_detected(tmp_path):
    code = [
        "torch.load(f)", "torch.load(f, weights_only=False)", "pickle.load(f)", "np.load(f, allow_pickle=True)",
        "yaml.load(f, yaml.Loader)", "yaml.load(f)", "os.system(x)", "subprocess.run(x, shell=True)", "eval(x)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)", "pickle.Unpickler(f)", "ruamel.yaml.YAML(typ='unsafe')",
    ]  # fmt: skip
    (tmp_path / "x.py").write_text("\n".join(code))
    assert {call.lineno for name, call in calls(tmp_path / "x.py") if forbidden(name, call)} == {*range(1, 13)}


def test_the_one_unpickler_refuses_every_class():
    classes = [
        (path, node) for path in FILES for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any("Unpickler" in ast.unparse(base) for base in node.bases)
    ]  # fmt: skip
    assert [path.name for path, _ in classes] == ["dumps.py"]
    (find_class,) = [item for item in classes[0][1].body if getattr(item, "name", "") == "find_class"]
    assert isinstance(find_class.body[-1], ast.Raise) and len(find_class.body) <= 2
