"""Write a trained model with its tokenizer as one GGUF file, which llama.cpp and Ollama run.

    python src export_gguf out.gguf [--models data/models --tokenizer data/tokenizer]

A tokenizer is rejected if llama.cpp would give other ids. Needs `pip install -r requirements/gguf.txt`.
"""

import argparse
from pathlib import Path
from types import ModuleType

from extras.gguf.vocabulary import describe_vocabulary
from lm.core.errors import ParamsError, exit_with_status
from tools.export_hf.hugging_face import load_run
from tools.record import paths
from tools.record.arguments import tool_parser
from tools.record.environment import explain_missing

PACKAGE = "gguf==0.19.0"  # as in requirements/gguf.txt
MAGIC = b"GGUF"  # the first bytes of every such file


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("export_gguf", __doc__)
    parser.add_argument("file", type=Path, help="the file to write")
    for path in (paths.MODELS, paths.TOKENIZER):
        parser.add_argument(f"--{path.stem}", type=Path, default=path, help=f"folder of the run ({path})")
    parser.add_argument("--dtype", choices=("f32", "f16"), default="f32", help="dtype of the matrices (f32)")
    return parser.parse_args(argv)


def check_replaceable(file: Path) -> None:
    """Raise ParamsError unless a file is missing or a GGUF file."""
    if file.is_dir() or (file.exists() and file.open("rb").read(len(MAGIC)) != MAGIC):
        raise ParamsError(f"{file}: exists and is not a GGUF file; name another file")


def load_writer() -> ModuleType:
    """Return the module that uses gguf. Raise EnvironmentFailure if a package is missing."""
    with explain_missing("gguf", f"run `python -m pip install {PACKAGE}`"):
        from extras.gguf import writer
    return writer


@exit_with_status
def main(argv: list[str]) -> None:
    args = parse(argv)
    file = args.file.resolve()
    check_replaceable(file)
    writer = load_writer()
    model, _, tokenizer = load_run(args.models, args.tokenizer)
    vocabulary = describe_vocabulary(tokenizer, model.config.vocab_size)
    writer.write_gguf(file, model, vocabulary, args.dtype)
    print(f"{file}: {file.stat().st_size:,} bytes")
