"""Write the values of a recipe into the parameter files, and show what changes.

    python src use                      # list the recipes
    python src use tinystories_gpt2
    python src use stack_c own_text     # one recipe, and another on top of it

A recipe, recipes/NAME.yaml, holds the values in which a workload differs from the default, by file: params.yaml,
presets.yaml, sources.yaml and runtime.yaml. Other values stay as they are, and so do comments. A recipe may add an
entry to the sources, selections, tokenizers and models. The result is checked before anything is written. `make back`
undoes it.
"""

import difflib
import io
import json
import tempfile
from pathlib import Path

from lm.core.errors import ParamsError, exit_with_status
from lm.core.files import write_text
from lm.core.params import read_yaml
from lm.core.paths import PARAMS, PRESETS, RUNTIME, SOURCES
from tools.record.arguments import tool_parser
from tools.record.parameters import comment_keeping_yaml, differences, flatten
from tools.record.problems import find_all_problems

RECIPES = Path("recipes")
FILES = (PARAMS, PRESETS, SOURCES, RUNTIME)
OPEN_SECTIONS = ("sources", "selections", "tokenizers", "models")  # a recipe may add entries to these


def nearest(name: str, names: list[str]) -> str:
    """Return the most similar of `names`."""
    return difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]


# Recipes.


def list_recipes() -> list[str]:
    """Return the names of all recipes. Raise ParamsError if the folder is missing."""
    names = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    if not names:
        raise ParamsError(f"{RECIPES}: has no recipes; run the command at the repository's root")
    return names


def read_comment(path: Path) -> list[str]:
    """Return the lines of the comment at the beginning of a file, without their #."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return lines


def read_recipe(name: str) -> dict:
    """Return the values of a recipe: file → nested values. Raise ParamsError if it is missing or names other files."""
    names = list_recipes()
    if name not in names:
        raise ParamsError(f"there is no recipe {name!r}; the nearest is {nearest(name, names)}, of {', '.join(names)}")
    path = RECIPES / f"{name}.yaml"
    read_yaml(path)  # raises one clear sentence if the YAML is invalid
    values = comment_keeping_yaml().load(path.read_text(encoding="utf-8"))
    for file, sections in values.items():
        if file not in map(str, FILES):
            raise ParamsError(f"{path}: {file} is none of the files {', '.join(map(str, FILES))}; move its values")
        if not isinstance(sections, dict):
            raise ParamsError(f"{path}: {file} is {sections!r}, not a mapping")
    return values


def put(values: dict, section: dict, where: str, name: str = "") -> None:
    """Put nested values into the section `name` of a file. Raise ParamsError for a key that the section lacks.

    where: the recipe and the file, for the error.
    """
    for key, value in values.items():
        path = f"{name}.{key}".lstrip(".")
        if key not in section and name not in OPEN_SECTIONS:
            known = f"{name}.{nearest(str(key), list(section))}".lstrip(".")
            raise ParamsError(f"{where}: {path} is unknown; the nearest valid name is {known}")
        present = section.get(key)
        if isinstance(value, dict) and isinstance(present, dict) and present:
            put(value, present, where, path)
        else:
            section[key] = value


# Changes.


def applied(names: list[str]) -> dict[Path, str]:
    """Return the text of each parameter file with the values of the recipes, one after the other."""
    editor = comment_keeping_yaml()
    contents = {}
    for file in FILES:
        read_yaml(file)  # it reports what is wrong in one sentence
        contents[str(file)] = editor.load(file.read_text(encoding="utf-8"))
    for name in names:
        for file, values in read_recipe(name).items():
            put(values, contents[file], f"{RECIPES / name}.yaml: {file}")

    texts = {}
    for file in FILES:
        stream = io.StringIO()
        editor.dump(contents[str(file)], stream)
        texts[file] = stream.getvalue()
    return texts


def write_into(folder: Path, texts: dict[Path, str]) -> None:
    """Write the files into a folder, each whole or not at all."""
    for file, text in texts.items():
        write_text(folder / file, text)


def changes_of(file: Path, before: dict, after: dict) -> list[str]:
    """Return a line for each value that differs between two states of a file, and one for each entry that is new."""
    lines = []
    for name, old, new in differences(flatten(before), flatten(after)):
        section, *inside = name.split(".")
        if section in OPEN_SECTIONS and inside[0] not in before[section]:
            lines.append(f"{file}: {section}.{inside[0]}  is new")
        else:
            lines.append(f"{file}: {name}  {shown(old)} -> {shown(new)}")
    return list(dict.fromkeys(lines))


def shown(value) -> str:
    """Return a value as JSON, a string without its quotes unless it is empty."""
    text = json.dumps(value, ensure_ascii=False)
    return text[1:-1] if isinstance(value, str) and value.strip() else text


def reject_wrong_values(folder: Path) -> None:
    """Raise ParamsError with a line for each wrong value in the files of a temporary folder."""
    if problems := find_all_problems(folder):
        lines = [problem.removeprefix(f"{folder}/") for problem in problems]
        raise ParamsError("\n".join(lines) + "; nothing was written")


@exit_with_status
def main(argv: list[str]) -> None:
    """Write the values and print the recipe's comment, the changes, and the next command; without a name, list all."""
    parser = tool_parser("use", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes, the last one on top; without one, list all")
    names = parser.parse_args(argv).names
    if not names:
        width = max(map(len, list_recipes()))
        for name in list_recipes():
            print(f"{name:{width}}  {read_comment(RECIPES / f'{name}.yaml')[0]}")
        return

    # Check the result in a temporary folder before any file here changes.
    texts = applied(names)
    with tempfile.TemporaryDirectory(prefix="use-") as folder:
        write_into(Path(folder), texts)
        reject_wrong_values(Path(folder))
        after = {file: read_yaml(Path(folder, file)) for file in FILES}
    changes = [line for file in FILES for line in changes_of(file, read_yaml(file), after[file])]
    write_into(Path(), texts)

    # Say what the recipe is, what changed, and how to go on.
    for name in names:
        print("\n".join([*read_comment(RECIPES / f"{name}.yaml"), ""]))
    print("\n".join([*(changes or ["All files already have these values."]), ""]))
    print("next: dvc exp run")
    print("undo: make back")
