"""A copy of the repository in a temporary folder, made small, on which real stages and real DVC run."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lm.core.params import read_yaml
from support import ROOT
from support.stages import MICRO_MODEL, STAGES, change_params, params_file, run_stages
from support.texts import write_sentences

# Text of data/local/small.jsonl; the source `local` reads the other files there.
SMALL_TEXT = "data/local/small.jsonl"
SMALL = {
    "data.source": "small", "sources.local.fetch.include": "*.txt",
    "sources.small": read_yaml(ROOT / "sources.yaml")["sources"]["local"],
    "sources.small.fetch.include": "small.jsonl", "sources.small.fetch.split.validation_fraction": 0.1,
    "sources.small.prompts": ["", "One old"],
    "tokenizers.bpe.vocab_size": 400, "models.micro": MICRO_MODEL, "model.name": "micro",
    "train.seq_len": 32, "train.batch_tokens": 512, "train.micro_batch_tokens": 512, "train.max_tokens": 10240,
    "train.warmup_steps": 2, "train.log_every_tokens": 1024, "train.eval_every_tokens": 5120, "train.eval_tokens": 512,
    "train.dtype": "float32",
    "eval.stride_fraction": 0.5, "eval.sample_tokens": 8, "eval.num_samples": 1,
}  # fmt: skip


def copy_repository(folder: Path) -> None:
    """Copy the files that git has or would take, as they are now."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def copy_compiled_loops(folder: Path) -> None:
    """Copy the machine code of the exact loops that the tests have compiled: a training run compiles it for 15 s."""
    cache = Path("src", "lm", "exact", "cpu", "__pycache__")
    (folder / cache).mkdir(exist_ok=True)
    for pattern in ("*.nbi", "*.nbc"):
        for path in (ROOT / cache).glob(pattern):
            shutil.copy2(path, folder / cache / path.name)


ALL = set(STAGES)


class Workspace:
    """The copy: its folder, its parameters, and the commands that run in it."""

    def __init__(self, folder: Path, finished: Path | None = None):
        """Copy the repository into a folder, or what a fixture of project.py has made of it."""
        self.folder = folder
        if finished:
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", f"{finished}/.", folder], check=True)  # keeps the links to DVC's cache
        else:
            copy_repository(folder)
            (folder / "dvc.lock").unlink(missing_ok=True)
        copy_compiled_loops(folder)
        # The commands' `python` is the one that runs the tests; the run is the same on any machine.
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def change(self, **values) -> None:
        """Change parameters, presets too: `change(**{"train.seq_len": 16})`; a missing section is created."""
        change_params(self.folder, values)

    def get(self, name: str):
        """Return a parameter by its dotted name."""
        value = read_yaml(params_file(self.folder, name))
        for part in name.split("."):
            value = value[part]
        return value

    def make_small(self) -> None:
        """Set parameters of a small run: 330 documents, 400 tokens, a model of a few thousand parameters, 20 steps."""
        self.change(**SMALL)
        write_sentences(self.folder / SMALL_TEXT, 330)

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
        """Run a command in the copy and return what it printed; a failure shows it."""
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, env={**self.environment, **environment}
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def run_stages(self) -> None:
        """Run all stages in this process, in the order of dvc.yaml and without DVC."""
        with contextlib.chdir(self.folder):
            run_stages()

    def commit(self, message: str = "state") -> None:
        """Put everything into git, which `dvc exp run` needs."""
        if not (self.folder / ".git").exists():
            self.run("git", "init", "-q", "-b", "main")
            for name, value in (("user.name", "t"), ("user.email", "t@localhost")):
                self.run("git", "config", name, value)
        self.run("git", "add", "-A")
        if (self.folder / SMALL_TEXT).exists():
            self.run("git", "add", "--force", SMALL_TEXT)  # Git ignores data/local
        self.run("git", "commit", "-q", "-m", message)

    def go_back(self, revision: str) -> None:
        """Bring back the files of a revision, and delete those that Git neither has nor ignores."""
        self.run("git", "reset", "--quiet", "--hard", revision)
        self.run("git", "clean", "--quiet", "-fd")

    def repro(self, *arguments: str) -> set[str]:
        """Run `dvc repro`; return the stages that ran or came from the run cache."""
        lines = self.run("dvc", "repro", *arguments).stdout.splitlines()
        ran = {line.split("'")[1] for line in lines if line.startswith("Running stage '")}
        cached = {line.split("'")[1] for line in lines if "is cached - skipping run" in line}
        return ran | cached
