"""A folder that a stage takes for the repository: links to the code, copies of the parameter files, no data.

folder = stage_folder(Path(name))
change_params(folder, {"train.seq_len": 64})
"""

import copy
import importlib
import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from support import ROOT

MICRO_MODEL = {
    "n_layer": 2,
    "n_head": 2,
    "n_kv_head": 1,
    "head_dim": 8,
    "d_model": 16,
    "d_ff": 32,
    "sliding_window": 8,
    "full_attention_every": 2,
    "rope_base_local": 10000.0,
    "rope_base_global": 10000.0,
    "query_pre_attn_scalar": 8,
    "norm_eps": 1e-6,
    "max_seq_len": 1024,
}
LINKED = ("src", "requirements", "requirements.txt")
COPIED = ("dvc.yaml", "params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml")
# The file that holds a section, if it is not params.yaml.
FILES = {
    "sources": "sources.yaml",
    "selections": "presets.yaml",
    "tokenizers": "presets.yaml",
    "models": "presets.yaml",
}
EMPTY = ("data/init", "data/local", "data/processed_datasets")


def stage_folder(folder: Path) -> Path:
    """Make `folder` what a stage takes for the repository: the same code, parameters of its own, no data."""
    for name in EMPTY:
        (folder / name).mkdir(parents=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for name in COPIED:
        (folder / name).write_text((ROOT / name).read_text())
    return folder


def work_in_copy(monkeypatch: pytest.MonkeyPatch, made: Path, copy: Path) -> None:
    """Copy the folder `made` and work in the copy, until the end of the test."""
    shutil.copytree(made, copy, symlinks=True)
    monkeypatch.chdir(copy)


def command_of(stage: dict) -> str:
    """Return the command of a stage of dvc.yaml, without the check of the parameters before it."""
    return stage["cmd"] if isinstance(stage["cmd"], str) else stage["cmd"][-1]


def change_params(folder: Path, values: dict, name: str | None = None) -> None:
    """Set parameters by dotted name in the file `name`, or else in the one that holds them.

    A missing section is created.
    """
    files = {}
    for key in values:
        files.setdefault(folder / name if name else params_file(folder, key), []).append(key)
    for path, keys in files.items():
        params = yaml.safe_load(path.read_text())
        for key in keys:
            *parents, last = key.split(".")
            section = params
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = copy.deepcopy(values[key])  # a change below it stays in the file
        path.write_text(yaml.safe_dump(params, sort_keys=False))


def params_file(folder: Path, key: str) -> Path:
    """Return the file that holds a dotted name."""
    return folder / FILES.get(key.split(".")[0], "params.yaml")


# The whole pipeline, small, in this process and without DVC.

STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
TINY = {
    "data.source": "local",
    "sources.local.fetch.split.validation_fraction": 0.2,
    "tokenizers.bpe.vocab_size": 300,
    "models.micro": MICRO_MODEL,
    "model.name": "micro",
    "train.seq_len": 32,
    "train.batch_tokens": 256,
    "train.micro_batch_tokens": 256,
    "train.max_tokens": 768,
    "train.warmup_steps": 1,
    "train.ngram_buckets": None,
    "train.log_every_tokens": 256,
    "train.eval_every_tokens": 512,
    "train.eval_tokens": 256,
    "eval.stride_fraction": 1.0,
    "eval.sample_tokens": 4,
    "eval.num_samples": 1,
}


def module_and_arguments(stage: str) -> tuple[str, list[str]]:
    """Return the module of a stage and its arguments, as in dvc.yaml."""
    _, script, *arguments = shlex.split(command_of(STAGES[stage]))
    return Path(script).stem, arguments


def run_here(stage: str) -> int:
    """Run a stage in this process, in the working directory; return its exit status."""
    module, arguments = module_and_arguments(stage)
    return importlib.import_module(module).main(arguments)


def run_stages(stages=STAGES) -> None:
    """Run stages in the working directory; each must succeed."""
    for stage in stages:
        assert run_here(stage) == 0, stage


def outputs_of(stage: str) -> list[str]:
    """Return the paths that dvc.yaml declares as outputs of a stage."""
    entry = STAGES[stage]
    declared = [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]
    return [path if isinstance(path, str) else next(iter(path)) for path in declared]


def write_texts(path: Path) -> None:
    """Write 80 documents, one a line of JSON, that are no near-duplicates of each other."""
    texts = [f"document {i}: {i * 7919} and {i * 104729}, and {i * i * 31} more.\n" * 2 for i in range(80)]
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
