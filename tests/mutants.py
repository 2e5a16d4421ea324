"""Remove one safeguard at a time and check that a test fails: `make mutants`.

Each mutant names a line of the code, its replacement, and the tests that must fail. They run on a copy of the
repository. Exit with 1 if a mutant survives, or if tests fail without any mutant.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from support.workspace import copy_repository


class Mutant(NamedTuple):
    """A safeguard, its file and line, the replacement, and the tests that must fail."""

    safeguard: str
    file: str
    line: str
    becomes: str
    tests: str


MUTANTS = [
    Mutant("fsync", "src/lm/core/files.py", "            os.fsync(file.fileno())\n", "", "lm/core/test_files.py"),
    Mutant("rename", "src/lm/core/files.py", "        with open(temporary, \"wb\") as file:\n",
           "        with open(path, \"wb\") as file, open(temporary, \"wb\"):\n", "lm/core/test_files.py"),
    Mutant("lock", "src/lm/core/files.py", "            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
           "            pass\n", "lm/core/test_files.py"),
    Mutant("strict JSON", "src/lm/core/files.py", "ensure_ascii=False, allow_nan=False", "ensure_ascii=False",
           "lm/core/test_files.py"),
    Mutant("RNG restore", "src/lm/train/state.py", "        torch.set_rng_state(saved[\"rng\"])\n", "",
           "lm/train/test_step.py"),
    Mutant("optimizer restore", "src/lm/train/state.py",
           "            optimizer.load_state_dict(self.world.shard_optimizer_state(state, optimizer))\n",
           "            pass\n", "lm/train/test_step.py"),
    Mutant("position in the data", "src/train.py", "range(state.step, params.max_steps)",
           "range(0, params.max_steps)", "faults/test_25_26_states.py -k test_26_a_damaged_newest"),
    Mutant("non-finite values", "src/lm/train/step.py",
           "    if not (math.isfinite(loss) and math.isfinite(grad_norm)):\n", "    if False:\n",
           "lm/train/test_step.py"),
    Mutant("measuring leaves no trace", "src/lm/train/preflight.py", "        p.detach().copy_(weights)\n",
           "        pass\n", "lm/train/test_step.py"),
    Mutant("hash check of a state", "src/lm/model/weights.py", "    if sha256 != recorded:\n",
           "    if False:\n", "faults/test_25_26_states.py -k test_26_a_damaged_newest"),
    Mutant("weights_only", "src/lm/model/weights.py", "map_location=\"cpu\", weights_only=True",
           "map_location=\"cpu\"", "faults/test_27_30_train.py -k test_27_a_hostile"),
    Mutant("code in the fingerprint", "src/lm/train/checkpoints.py", "\"code\": code, ", "",
           "lm/train/test_fingerprint.py"),
    Mutant("id-range check", "src/train.py", "        check_id_range(tokens)\n", "        pass\n",
           "faults/test_21_24_data_files.py -k test_22"),
    Mutant("hash check of a token file", "src/lm/tokens/tokenfile.py", "    if sha256 != recorded:\n",
           "    if False:\n", "faults/test_21_24_data_files.py -k test_21_a_token_file"),
    Mutant("int64 cast", "src/lm/tokens/windows.py", "windows.view(ids.dtype).astype(np.int64)",
           "windows.view(ids.dtype).astype(ids.dtype)", "lm/tokens/test_windows.py"),
    Mutant("the window's last position", "src/lm/tokens/windows.py", "(len(self.ids) - 1 - self._offset(epoch))",
           "max(self.seq_len, len(self.ids) - 2 - self._offset(epoch))", "lm/tokens/test_windows.py"),
    Mutant("separator", "src/lm/tokenizer/load.py", "for piece in (document, eot)] or",
           "for piece in (document,)] or", "lm/tokenizer/test_load.py"),
    Mutant("hash check of the text", "src/tokenize_split.py",
           "            check.result()  # before anything is kept\n", "",
           "stages/test_tokenize_split.py -k manifest"),
    Mutant("mean of the ranks' gradients", "src/lm/train/world.py", "            dist.all_reduce(flat)\n", "",
           "lm/train/test_distributed.py"),
    Mutant("overlap of the slices", "src/tokenize_split.py", "    refuse_overlap(train, validation, f",
           "    str(f", "faults/test_17_20_tokenize.py -k test_19_overlapping"),
    Mutant("overlap of a part's slices", "src/resolve.py", "        refuse_overlap(train, validation, f",
           "        str(f", "stages/test_resolve.py"),
    Mutant("a weight of each part", "src/lm/text/slices.py", "if missing := [name for name in parts if",
           "if missing := [name for name in () if", "lm/text/test_mixture.py"),
    Mutant("end of the mixed stream", "src/lm/text/mixture.py", "np.searchsorted(keys, total)",
           "np.searchsorted(keys, total, \"right\")", "lm/text/test_mixture.py"),
    Mutant("order across batches of the parts", "src/lm/text/mixture.py", "min(last_keys), \"right\"",
           "max(last_keys), \"right\"", "lm/text/test_mixture_properties.py"),
    Mutant("dropped documents", "src/lm/text/documents.py",
           "        keep[has_text[left_out[first:last] - number]] = False\n", "", "lm/text/test_mixture.py"),
    Mutant("hash check of a kept part", "src/lm/text/parts.py", "return bool(read_manifest(folder))",
           "return (folder / MANIFEST).exists()", "stages/test_fetch_mixture.py -k damaged"),
    Mutant("code of a kept part", "src/lm/text/parts.py", "\"fetch\": fetch, \"code\": code,", "\"fetch\": fetch,",
           "stages/test_fetch_mixture.py -k other_code"),
    Mutant("own text is read again", "src/fetch.py", "    if fetch[\"kind\"] == \"local\":", "    if False:",
           "stages/test_fetch_mixture.py -k own_text"),
]  # fmt: skip


def tests_pass(folder: Path, tests: str) -> bool:
    """Return True if the tests of a file in the copy pass; -k after the file selects some of them."""
    file, _, chosen = tests.partition(" -k ")
    options = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *(["-k", chosen] if chosen else [])]
    command = [sys.executable, "-m", "pytest", *options, folder / "tests" / file]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def caught(mutant: Mutant, folder: Path) -> bool:
    """Return True if the mutant's tests fail with it; restore the copy."""
    path = folder / mutant.file
    before = path.read_text()
    if before.count(mutant.line) != 1:
        raise SystemExit(
            f"{mutant.file}: {mutant.line!r} occurs {before.count(mutant.line)} times; update tests/mutants.py"
        )
    path.write_text(before.replace(mutant.line, mutant.becomes))
    try:
        return not tests_pass(folder, mutant.tests)
    finally:
        path.write_text(before)


def main() -> int:
    """Print a line for each mutant; return 1 if one survives."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_repository(folder)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # the tests ask git for its files
        for tests in sorted({mutant.tests for mutant in MUTANTS}):
            if not tests_pass(folder, tests):
                raise SystemExit(f"{tests}: fails without any mutant")
        survivors = 0
        for mutant in MUTANTS:
            is_caught = caught(mutant, folder)
            survivors += not is_caught
            print(
                f"{'caught by ' + mutant.tests if is_caught else 'SURVIVED'}: {mutant.safeguard} ({mutant.file})",
                flush=True,
            )
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
