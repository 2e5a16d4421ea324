"""Remove one safeguard at a time and check that a test fails: `make mutants` (mutants.py NAME … for some).

Each mutant is a line of the code, its replacement, and the tests that must fail. They run on a copy of the repository,
first without the mutant, where they must pass. Exit with 1 if a mutant survives or cannot be tried.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from support.workspace import copy_repository


class Mutant(NamedTuple):
    """A safeguard, its file and line, the replacement, and the tests that must fail: a file, perhaps with -k."""

    safeguard: str
    file: str
    line: str
    becomes: str
    tests: str


FILES = "src/lm/core/files.py"
WINDOWS = "src/lm/tokens/windows.py"
MASKS = "src/lm/model/kernels.py"
SCORE = "src/lm/model/score.py"
WEIGHTS = "src/lm/model/weights.py"
STEP = "src/lm/train/step.py"
STATE = "src/lm/train/state.py"
PRODUCTS = "src/lm/exact/cpu/products.py"

MUTANTS = [
    # Files.
    Mutant("fsync before rename", FILES, "            os.fsync(file.fileno())\n", "", "lm/core/test_files.py"),
    Mutant("atomic write", FILES, '        with open(temporary, "wb") as file:\n',
           '        with open(path, "wb") as file, open(temporary, "wb"):\n', "lm/core/test_files.py"),
    Mutant("one writer", FILES, "        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
           "        pass\n", "lm/core/test_files.py"),
    Mutant("strict JSON", FILES, "ensure_ascii=False, allow_nan=False", "ensure_ascii=False", "lm/core/test_files.py"),
    Mutant("path escape", FILES, '    if "\\0" in name or ".." in path.parts or',
           "    if False or", "lm/core/test_files.py -k outside"),
    Mutant("pipes and devices", FILES, "    if path.exists() and not (path.is_file() or path.is_dir()):\n",
           "    if False:\n", "lm/core/test_files.py -k pipe"),
    Mutant("unknown parameters", "src/lm/core/params.py", "        if key not in fields:\n", "        if False:\n",
           "lm/core/test_params.py"),
    Mutant("a recipe is checked before it is written", "src/tools/use.py",
           "        reject_wrong_values(Path(folder))\n", "", "tools/test_use.py -k wrong_recipe"),
    # Text, tokens.
    Mutant("hash of the text", "src/tokenize_split.py", "                file_check.result()\n", "",
           "stages/test_tokenize_split.py -k manifest"),
    Mutant("overlap of slices", "src/lm/text/slices.py", "    reject_overlap(train, validation, f", "    str(f",
           "faults/test_wrong_parameters.py -k slice"),
    Mutant("clusters on one side of the split", "src/lm/text/splits.py",
           "    clusters = find_clusters(batches, params.near_duplicates)\n",
           "    clusters = find_clusters(batches, params.near_duplicates)\n"
           "    clusters = np.arange(len(clusters))\n", "lm/text/test_splits.py"),
    Mutant("the test split apart from those that stages read", "src/lm/text/compose.py",
           "    test = splits.pop(TEST, None)\n", "    test = splits.get(TEST)\n", "stages/test_held_out.py"),
    Mutant("one separator a document", "src/lm/tokenizer/load.py", "for piece in (document, eot)] or",
           "for piece in (document,)] or", "lm/tokenizer/test_load.py"),
    Mutant("hash of a token file", FILES, "    if sha256 != recorded:\n", "    if False:\n",
           "faults/test_damaged_inputs.py -k right_one"),
    Mutant("order of batches", WINDOWS, "random_generator(seed, epoch, _ORDER)", "random_generator(seed, 0, _ORDER)",
           "lm/tokens/test_windows.py"),
    Mutant("last target", WINDOWS, "(len(self.ids) - 1 - self._offset(epoch))",
           "max(self.seq_len, len(self.ids) - 2 - self._offset(epoch))", "lm/tokens/test_windows.py"),
    Mutant("contaminated n-grams", "src/lm/tokens/ngrams.py", "        covered[: n - 1] = open_grams\n", "",
           "lm/tokens/test_ngrams.py"),
    Mutant("wrong tokenizer", "src/audit.py", "        check_tokenizer(tokens, tokenizer.sha256)\n", "        pass\n",
           "stages/test_audit.py -k another_tokenizer"),
    # Model.
    Mutant("causality", MASKS, "(distance >= 0) & (distance < window)", "(distance >= -1) & (distance < window)",
           "lm/model/test_gemma3.py -k causality"),
    Mutant("all terms of a product", PRODUCTS, "adds_chain = adds or first > first_term",
           "adds_chain = adds", "lm/exact/test_order.py"),
    Mutant("where chains are cut", PRODUCTS, "min((first // TERMS + 1) * TERMS, last_term)",
           "min(first + TERMS, last_term)", "lm/exact/test_order.py"),
    Mutant("pickle refusal", WEIGHTS, 'map_location="cpu", weights_only=True', 'map_location="cpu"',
           "repository/test_security.py -k no_call"),
    Mutant("hash of a checkpoint", FILES, "    if sha256 != recorded:\n", "    if False:\n",
           "faults/test_damaged_inputs.py -k newest"),
    # Training.
    Mutant("fingerprint", "src/lm/train/fingerprint.py", '        "versions": library_versions(),\n', "",
           "lm/train/test_fingerprint.py -k version"),
    Mutant("ids within the vocabulary", "src/lm/tokens/tokenfile.py", "    if outside is not None:\n",
           "    if False:\n", "lm/tokens/test_tokenfile.py -k vocabulary"),
    Mutant("resume: position", "src/train.py", "range(state.step, params.max_steps)", "range(0, params.max_steps)",
           "faults/test_damaged_inputs.py -k newest"),
    Mutant("resume: optimizer", STATE, "            optimizer.load_state_dict(state)\n", "            pass\n",
           "lm/train/test_step.py -k interrupted"),
    Mutant("learning rate", "src/lm/train/step.py", "return min(warmup, scheduled)", "return scheduled",
           "lm/train/test_train_properties.py"),
    Mutant("clipping", STEP, "nn.utils.clip_grads_with_norm_(parameters, params.grad_clip, norm)",
           "nn.utils.clip_grads_with_norm_(parameters, 2 * params.grad_clip, norm)", "lm/train/test_step.py -k limit"),
    Mutant("finite losses", STEP, "    if not (math.isfinite(loss) and math.isfinite(grad_norm)):\n",
           "    if False:\n", "lm/train/test_step.py -k not_finite"),
    Mutant("mean over ranks", "src/lm/train/ranks.py", "            dist.all_reduce(flat)\n", "",
           "lm/train/test_ranks.py"),
    # Evaluation, tools.
    Mutant("bits per byte", "src/lm/evaluate/documents.py", "_ratio(nats / math.log(2), utf8_bytes)",
           "_ratio(nats, utf8_bytes)", "lm/evaluate/test_document_losses.py"),
    Mutant("context of a token", SCORE, "        start = first_scored - (seq_len - stride)\n",
           "        start = first_scored\n", "lm/model/test_score.py"),
    Mutant("error bars", "src/evidence/intervals.py", "1 - 2 * weights + sum_of_squares, 1e-12)",
           "1 + 2 * weights + sum_of_squares, 1e-12)", "evidence/test_intervals.py"),
    Mutant("pairs of equal seeds", "src/evidence/comparison.py", "> 1 and have_pairs(a, b):",
           "> 99:", "evidence/test_comparison.py"),
    Mutant("number of comparisons", "src/evidence/differences.py", "(len(tested) - rank) * p", "p",
           "evidence/test_statistics.py"),
    Mutant("tokens that selected the model", "src/lm/evaluate/documents.py", "eval_tokens, seq_len)",
           "eval_tokens, 2 * seq_len)", "lm/evaluate/test_document_losses.py"),
    Mutant("text of another fetch in training", "src/tools/score_test.py",
           '        if meta["source"] != describe_text(manifest, slice_from(meta["slice"])):\n', "        if False:\n",
           "tools/test_score_test.py -k another_fetch"),
    Mutant("digest of retrained steps", "src/tools/verify/retrain.py",
           "        if row != expected:\n", "        if False:\n",
           "tools/test_retrain.py -k changed_by_one_bit"),
    Mutant("digest of a rebuilt checkpoint", "src/tools/verify/retrain.py",
           "    if digest != recorded[checkpoint.step][DIGEST]:\n", "    if False:\n",
           "tools/test_retrain.py -k another_digest"),
    Mutant("SHA-256 of what was decompressed", "extras/compress/decompress.py",
           "    if files.digest(content) != header.content_digest:\n", "    if False:\n",
           "extras/compress/tests/test_compress.py -k other_bytes"),
    Mutant("escaped text in the report", "extras/report/report.py", "autoescape=True", "autoescape=False",
           "extras/report/tests/test_report.py"),
    Mutant("secrets of an address", "src/tools/export_hf/card.py", '        return f"https://{match[1]}"\n',
           "        return url\n", "tools/test_card.py -k address"),
]  # fmt: skip


def tests_pass(folder: Path, tests: str) -> bool:
    """Return True if at least one of the tests is selected and all pass in the copy."""
    file, _, chosen = tests.partition(" -k ")
    path = file if file.startswith("extras/") else f"tests/{file}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", path]
    if chosen:
        command += ["-k", chosen]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def outcome(mutant: Mutant, folder: Path, passing: set[str]) -> str:
    """Return what becomes of a mutant in the copy, which is restored; `passing` caches tests that pass without it."""
    path = folder / mutant.file
    if not path.exists() or path.read_text().count(mutant.line) != 1:
        return "NOT APPLICABLE"
    if mutant.tests not in passing and not tests_pass(folder, mutant.tests):
        return "FAILS WITHOUT IT"
    passing.add(mutant.tests)
    before = path.read_text()
    path.write_text(before.replace(mutant.line, mutant.becomes))
    try:
        return "SURVIVED" if tests_pass(folder, mutant.tests) else "caught"
    finally:
        path.write_text(before)


def main(chosen: list[str]) -> int:
    """Try the mutants whose safeguard contains a word of `chosen`, or all; return 1 unless all are caught."""
    passing: set[str] = set()
    caught = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_repository(folder)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # the tests ask git for its files
        for mutant in MUTANTS:
            if not chosen or any(word in mutant.safeguard for word in chosen):
                result = outcome(mutant, folder, passing)
                caught.append(result == "caught")
                print(f"{result}: {mutant.safeguard} ({mutant.file}, {mutant.tests})", flush=True)
    print(f"{sum(caught)} of {len(caught)} mutants caught")
    return int(not all(caught))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
