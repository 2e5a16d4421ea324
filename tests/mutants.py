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
    Mutant("whole tensors in a digest", "src/lm/train/state.py", ".contiguous().view(-1).view(torch.uint8)",
           ".contiguous().view(-1)[:-1].view(torch.uint8)", "lm/train/test_state.py"),
    Mutant("optimizers in a digest", "src/lm/train/state.py", "sorted(optimizer[\"state\"].items())", "()",
           "lm/train/test_state.py"),
    Mutant("average in a digest", "src/lm/train/state.py", "for name, tensor in saved[\"average\"].items())",
           "for name, tensor in ())", "lm/train/test_average.py -k last_bit"),
    Mutant("average restore", "src/lm/train/state.py",
           "        self.average = {name: value.to(self.model.device) for name, value in average.items()}\n", "",
           "lm/train/test_average.py -k interrupted"),
    Mutant("weights put back after a validation", "src/lm/train/state.py",
           "        finally:\n            self._swap_average()\n", "        finally:\n            pass\n",
           "lm/train/test_average.py -k training_does_not_depend"),
    Mutant("validations score the average", "src/lm/train/step.py", "    with state.averaged():\n", "    if True:\n",
           "lm/train/test_average.py -k scores_the_average"),
    Mutant("memory of the average", "src/lm/train/preflight.py", "(5 + averaged)", "5",
           "lm/train/test_average.py -k memory"),
    Mutant("digest of a kept state", "src/tools/verify/recompute.py",
           "        if digest != recorded[interval.start][\"state_digest\"]:\n", "        if False:\n",
           "tools/test_recompute.py -k kept_state_is_always"),
    Mutant("digest of an interval", "src/tools/verify/recompute.py", "        if again[step] != recorded.get(step):\n",
           "        if False:\n", "tools/test_recompute.py -k changed_by_one_bit"),
    Mutant("a weight changes by one bit in an interval", "src/lm/train/checkpoints.py",
           "    _write_state(run / f\"kept-{step:09d}.json\", step, state)\n",
           "    next(iter(state[\"model\"].values())).view(-1).view(torch.int32)[0] ^= 1\n"
           "    _write_state(run / f\"kept-{step:09d}.json\", step, state)\n",
           "tools/test_recompute.py -k finished_run_has_the_same"),
    Mutant("another run is refused", "src/tools/verify/recompute.py", "        if other.name != run.name:\n",
           "        if False:\n", "tools/test_recompute.py -k workspace_of_another"),
    Mutant("parameters of two runs that part", "src/tools/compare/parting.py", "a.params != b.params or ", "",
           "tools/test_compare_parting.py"),
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
    Mutant("int64 cast", "src/lm/tokens/windows.py", "windows.view(dtype).astype(np.int64)",
           "windows.view(dtype).astype(dtype)", "lm/tokens/test_windows.py"),
    Mutant("windows past the end of the order", "src/lm/tokens/windows.py", "    while len(outside):\n",
           "    while False:\n", "lm/tokens/test_windows.py"),
    Mutant("the window's last position", "src/lm/tokens/windows.py", "(len(self.ids) - 1 - self._offset(epoch))",
           "max(self.seq_len, len(self.ids) - 2 - self._offset(epoch))", "lm/tokens/test_windows.py"),
    Mutant("separator", "src/lm/tokenizer/load.py", "for piece in (document, eot)] or",
           "for piece in (document,)] or", "lm/tokenizer/test_load.py"),
    Mutant("hash check of the text", "src/tokenize_split.py",
           "            check.result()  # before anything is kept\n", "",
           "stages/test_tokenize_split.py -k manifest"),
    Mutant("selection of another text", "src/lm/text/selection.py",
           "    if details[\"manifest_sha256\"] != sha256_file(raw / MANIFEST):\n", "    if False:\n",
           "faults/test_35_select.py -k old_selection"),
    Mutant("hash check of a selection", "src/lm/text/selection.py",
           "    if actual != details[\"dropped_sha256\"]:\n", "    if False:\n",
           "faults/test_35_select.py -k damaged"),
    Mutant("selection of the token files", "src/audit.py",
           "    if tokens.meta[\"source\"].get(\"selection\") != describe_selection(selection, raw):\n",
           "    if False:\n", "faults/test_35_select.py -k another_selection"),
    Mutant("validation documents first", "src/lm/text/selection.py", "    for is_wanted in (True, False):\n",
           "    for is_wanted in (False, True):\n", "lm/text/test_selection.py"),
    Mutant("an empty split", "src/select_documents.py", "            if found[\"dropped\"] and not found[\"kept\"]:\n",
           "            if False:\n", "faults/test_35_select.py -k leave_nothing"),
    Mutant("mean of the ranks' gradients", "src/lm/train/world.py", "            dist.all_reduce(flat)\n", "",
           "lm/train/test_distributed.py"),
    Mutant("the window of a sliding layer's blocks", "src/lm/model/attention_masks.py",
           "        return (q >= kv) & (q - kv < window)\n", "        return q >= kv\n",
           "lm/model/test_attention_masks.py"),
    Mutant("no attention to other documents", "src/lm/model/attention_masks.py",
           "(documents[:, :, None] == documents[:, None, :]) & (distance >= 0)", "(distance >= 0)",
           "lm/model/test_attention_masks.py"),
    Mutant("the mask where training takes products", "src/lm/model/kernels.py",
           "            bias = mask.expand(B, H, T, S).reshape(B * K, -1, S)\n",
           "            bias = q.new_zeros(T, S).masked_fill_(~visible(T, S, window, q.device), -torch.inf)"
           ".repeat(H // K, 1)\n", "lm/model/test_attention_masks.py"),
    Mutant("a run keeps to documents", "src/train.py",
           "    model.document_start_id = None if params.attend_across_documents else run.train.eot_id\n", "",
           "stages/test_train_stage.py -k keeps_to"),
    Mutant("a model keeps to documents as its record says", "src/lm/model/weights.py",
           "    model.document_start_id = document_start_id\n", "", "lm/model/test_weights.py"),
    Mutant("a prompt's last document alone", "src/lm/evaluate/generation.py",
           "    ids, cache = last_document(prompt_ids, model.document_start_id), KVCache()",
           "    ids, cache = list(prompt_ids), KVCache()", "lm/evaluate/test_generation.py"),
    Mutant("a new cache for a new document", "src/lm/evaluate/generation.py",
           "            if ids[-1] == model.document_start_id:\n", "            if False:\n",
           "lm/evaluate/test_generation.py"),
    Mutant("no second document in a cache", "src/lm/model/gemma3.py",
           "        if self.document_start_id is not None and (ids == self.document_start_id).any():\n",
           "        if False:\n", "lm/evaluate/test_generation.py"),
    Mutant("overlap of the slices", "src/tokenize_split.py", "    refuse_overlap(train, validation, f",
           "    str(f", "faults/test_17_20_tokenize.py -k test_19_overlapping"),
    Mutant("a long document among the selection tokens", "src/lm/tokens/windows.py",
           "np.minimum(lengths, _longest_counted(lengths[lengths > 0], count * seq_len))", "lengths",
           "lm/tokens/test_windows.py"),
    Mutant("losses of each stride", "src/lm/model/score.py", "losses, positions = scored[number]",
           "losses, positions = scored[0]", "lm/model/test_score.py"),
    Mutant("selection tokens of eval and train", "src/lm/evaluate/documents.py",
           "eval_tokens, seq_len, validation.spans)", "eval_tokens, seq_len, validation.spans[-1:])",
           "lm/evaluate/test_document_losses.py"),
    Mutant("both directions of a pair", "src/lm/evaluate/pair_choice.py",
           "        pairs |= {_pair(a, b.word), _pair(b, a.word)}\n", "        pairs |= {_pair(a, b.word)}\n",
           "lm/evaluate/test_pair_choice.py"),
    Mutant("words that are right elsewhere", "src/lm/evaluate/pair_choice.py",
           " or a.word in b.refused or b.word in a.refused", "", "lm/evaluate/test_pair_choice.py"),
    Mutant("words that the grammar leaves open", "src/lm/evaluate/story_pairs.py",
           "        if not is_determined[start] or not", "        if not", "lm/evaluate/test_story_pairs.py"),
    Mutant("a mention in reach", "src/lm/evaluate/story_pairs.py",
           " if mention.start >= start - REACH_CHARS]", "]", "lm/evaluate/test_story_pairs.py"),
    Mutant("brackets in comments and strings", "src/lm/evaluate/code_pairs.py",
           "    code = SKIPPED.sub(lambda skipped: \" \" * len(skipped[0]), text)\n", "    code = text\n",
           "lm/evaluate/test_code_pairs.py"),
    Mutant("brackets that do not match", "src/lm/evaluate/code_pairs.py",
           "        if begin is None or CLOSING[code[begin]] != bracket:\n", "        if begin is None:\n",
           "lm/evaluate/test_code_pairs.py"),
    Mutant("the whole word of a pair", "src/lm/evaluate/minimal_pairs.py",
           "        if a != b or num_bytes > most_bytes:\n", "        if a != b:\n",
           "lm/evaluate/test_minimal_pairs.py"),
    Mutant("end-of-text before a document alone", "src/lm/evaluate/minimal_pairs.py",
           "    prefix = [tokenizer.eot_id] if start == 0 else []\n", "    prefix = [tokenizer.eot_id]\n",
           "lm/evaluate/test_minimal_pairs.py"),
    Mutant("ties of a pair", "src/lm/evaluate/pair_choice.py",
           "    return (1 + np.sign(wrong_nats - right_nats)) / 2\n",
           "    return (wrong_nats > right_nats) * 1.0\n", "lm/evaluate/test_minimal_pairs.py"),
    Mutant("documents of a perfect accuracy", "src/lm/evaluate/intervals.py",
           " if variance > 0 else float(len(trials))\n", " if variance > 0 else total\n",
           "lm/evaluate/test_intervals.py -k without_a_failure"),
    Mutant("both tails of McNemar's test", "src/tools/compare/minimal_pairs.py", "min(1.0, 2 * tail / 2**num_tosses)",
           "min(1.0, tail / 2**num_tosses)", "tools/test_compare_minimal_pairs.py"),
    Mutant("one trial for each place", "src/tools/compare/minimal_pairs.py",
           "np.bincount(place, of_b - of_a)", "of_b - of_a", "tools/test_compare_minimal_pairs.py"),
    Mutant("information of each token", "src/lm/evaluate/phenomena.py",
           "derivation.surprisal_bits[ends] - derivation.surprisal_bits[begins]", "derivation.surprisal_bits[ends]",
           "lm/evaluate/test_phenomena.py"),
    Mutant("names that a pronoun rules out", "src/lm/text/sources/stories/derivation.py",
           "        options[field.slot] = matching\n", "", "lm/text/sources/test_derivation.py"),
    Mutant("documents that may have a larger regret", "src/lm/evaluate/excerpts.py",
           " == NUM_PLACES and largest_loss[document] <= found[-1][0]:", " == NUM_PLACES:",
           "lm/evaluate/test_excerpts.py -k surprisal_is_no_regret"),
    Mutant("the window that scored a token", "src/lm/model/score.py", "math.ceil((token + 1 - seq_len) / stride)",
           "(token + 1 - seq_len) // stride", "lm/model/test_score.py"),
    Mutant("text of an excerpt is escaped", "src/tools/report/cli.py", "autoescape=True", "autoescape=False",
           "tools/test_reading.py"),
    Mutant("documents of the parts", "src/lm/evaluate/documents.py",
           "    if sum(counts.values()) != len(validation.spans):\n", "    if False:\n",
           "lm/evaluate/test_document_losses.py"),
    Mutant("runs with different parts", "src/tools/compare/runs.py", "np.array_equal(parts, run.parts)", "True",
           "tools/test_compare.py"),
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
    Mutant("near-duplicates beside the first of a bucket", "src/lm/text/near_duplicates.py",
           "            _join_divided(clusters, signatures, documents[begin:end], params)\n", "            pass\n",
           "lm/text/test_near_duplicates.py"),
    Mutant("candidates are verified", "src/lm/text/near_duplicates.py",
           "agree >= params.threshold * params.num_permutations - 1e-9", "agree >= 0",
           "lm/text/test_near_duplicates.py"),
    Mutant("no word is cut", "src/lm/text/near_duplicates.py",
           "            end += 1  # never cut a word\n", "            break\n", "lm/text/test_near_duplicates.py"),
    Mutant("validation shares little", "src/lm/text/splits.py",
           "np.lexsort((-highest[members], shared[members]))", "np.argsort(-highest[members])",
           "lm/text/test_splits.py"),
    Mutant("clusters are whole", "src/lm/text/splits.py",
           "    clusters = find_clusters(survey.watch(batches), params.near_duplicates)\n",
           "    clusters = find_clusters(survey.watch(batches), params.near_duplicates)\n"
           "    clusters = np.arange(len(clusters))\n", "lm/text/test_splits.py"),
    Mutant("the last cluster is for training", "src/lm/text/splits.py",
           "order[:-1].tolist()", "order.tolist()", "lm/text/test_splits.py"),
    Mutant("headers of the pinned version only", "src/lm/text/sources/torch_headers.py",
           " if torch.version.split(\"+\")[0] == version else None", "", "lm/text/sources/test_torch_headers.py"),
    Mutant("the pattern of the pre-tokenizer's name", "src/lm/tokenizer/load.py",
           "    if meta[\"pattern\"] is not None and PATTERNS.get(pretokenizer) != meta[\"pattern\"]:\n",
           "    if False:\n", "lm/tokenizer/test_load.py -k inconsistent_meta"),
    Mutant("possessive digits in tokenizers", "src/lm/tokenizer/pretokenize.py",
           ".replace(\"{1,3}+\", \"{1,3}\")", "", "lm/tokenizer/test_pretokenize.py -k cuts_as_tiktoken"),
    Mutant("white space after a line end", "src/lm/tokenizer/pretokenize.py", "sorted(after_line_end | {", "sorted({",
           "lm/tokenizer/test_pretokenize.py -k cut_only_at_long_runs"),
    Mutant("new marks by tiktoken", "src/lm/tokenizer/engine.py", "_class_of(NEW_CHARACTERS + NEW_MARKS)",
           "_class_of(NEW_CHARACTERS)", "lm/tokenizer/test_engine.py -k every_mark"),
    Mutant("tokenizer of the audit", "src/audit.py", "        check_tokenizer(tokens, tokenizer.sha256)\n",
           "        pass\n", "stages/test_audit.py -k another_tokenizer"),
    Mutant("n-grams across blocks", "src/lm/tokens/ngrams.py", "        covered[: n - 1] = open_grams\n", "",
           "lm/tokens/test_ngrams.py"),
    Mutant("documents across blocks", "src/lm/tokens/ngrams.py", "            shared[0] += open_shared\n", "",
           "lm/tokens/test_ngrams.py -k counted_without"),
    Mutant("all buckets of digests", "src/lm/text/duplicates.py", "for bucket in range(num_buckets):",
           "for bucket in range(1):", "lm/text/test_duplicates.py"),
    Mutant("blocks of a product", "src/lm/model/products.py", "    if a.shape[1] <= BLOCK:\n        return _block(",
           "    if a.shape[1] <= 2 * BLOCK:\n        return _block(", "lm/model/test_products.py"),
    Mutant("a single vector", "src/lm/model/products.py", "        return product(a.expand(2, -1), b)[:1]\n",
           "        return _sum_blocks(a, b)\n", "lm/model/test_products.py"),
    Mutant("portable gelu", "src/lm/model/kernels.py", "    if has_fixed_order(gate, compute_dtype(gate)):\n",
           "    if False:\n", "tools/test_prove.py"),
    Mutant("tree of gradients", "src/lm/train/step.py", "    middle = len(units) // 2\n", "    middle = 1\n",
           "lm/train/test_distributed.py -k any_number_of_ranks"),
    Mutant("ranks in pairs", "src/lm/train/world.py", "            partner = self.rank ^ distance\n",
           "            partner = self.rank ^ (self.world_size // 2 // distance)\n",
           "lm/train/test_distributed.py -k any_number_of_ranks"),
    Mutant("kernels of torch", "src/lm/model/device.py",
           "    if torch.backends.cpu.get_cpu_capability() != \"AVX2\":\n", "    if False:\n", "tools/test_prove.py"),
    Mutant("no float64 on a GPU", "src/lm/model/kernels.py",
           "(largest.double() if largest.device.type == \"cpu\" else largest)", "largest.double()",
           "lm/model/test_accelerator.py -k float64"),
    Mutant("copies to an Apple GPU are waited for", "src/lm/model/accelerator.py", "    return tensor.to(device)  #",
           "    return tensor.to(device, non_blocking=True)  #", "lm/model/test_accelerator.py -k background"),
    Mutant("one process on an Apple GPU", "src/lm/model/device.py", "    if kind == \"mps\":\n", "    if False:\n",
           "lm/model/test_device.py -k several_ranks"),
    Mutant("the memory that an Apple GPU may take", "src/lm/model/device.py",
           "    if device.type == \"mps\":  # it shares", "    if False:  # it shares",
           "lm/model/test_device.py -k memory_of_an_apple"),
    Mutant("free cores", "src/train.py", "                run.cores.adapt()\n", "",
           "stages/test_train_stage.py -k threads_follow"),
    Mutant("threads of fast numerics", "src/train.py", "FreeCores(params.numerics == \"portable\" and ", "FreeCores(",
           "stages/test_train_stage.py -k threads_follow"),
    Mutant("a person's threads", "src/lm/model/threads.py", "adapts and \"OMP_NUM_THREADS\" not in os.environ",
           "adapts", "lm/model/test_threads.py"),
    Mutant("attention's gradient of keys", "src/lm/model/kernels.py", " grad_k, grad_v, None", " -grad_k, grad_v, None",
           "lm/model/test_products.py"),
    Mutant("agreement with lm-eval", "src/tools/lm_eval/agreement.py",
           "        if difference is not None and not difference <= MAX_DIFFERENCE:\n", "        if False:\n",
           "tools/test_lm_eval.py -k difference_above"),
    Mutant("every token of a continuation is compared", "src/tools/lm_eval/agreement.py",
           "return losses[num_context - num_tokens :]", "return losses[num_context - num_tokens + 1 :]",
           "tools/test_lm_eval.py -k score_of_a_continuation"),
    Mutant("wrong endings differ from the right one", "src/tools/make_tasks.py",
           "(ending for ending in others if ending != item.ending)", "others", "tools/test_make_tasks.py"),
    Mutant("the place of the right ending", "src/tools/make_tasks.py",
           "rng.permutation(np.arange(len(items)) % NUM_ENDINGS)", "rng.integers(NUM_ENDINGS, size=len(items))",
           "tools/test_make_tasks.py -k every_place"),
    Mutant("hash of published weights", "src/lm/formats/hugging_face.py",
           "    if recorded != sha256 or not same_shape:\n", "    if not same_shape:\n",
           "tools/test_publish.py -k another_hash"),
    Mutant("files of a published folder", "src/tools/publish.py",
           "        if name not in found or sha256_file(found[name]) != sha256:\n", "        if name not in found:\n",
           "tools/test_publish.py -k must_be_what"),
    Mutant("nothing but an export is published", "src/tools/publish.py",
           "    if unknown := found.keys() - expected.keys() - {CARD}:\n", "    if unknown := set():\n",
           "tools/test_publish.py -k not_of_an_export"),
    Mutant("the card of the published weights", "src/tools/publish.py",
           " or weights_sha256.encode() not in card.read_bytes()", "",
           "tools/test_publish.py -k card_of_another"),
    Mutant("a token that a client would quote", "src/tools/publish.py",
           "    if not re.fullmatch(r\"[!-~]+\", token):\n", "    if False:\n",
           "tools/test_publish.py -k never_printed"),
    Mutant("a public repository is not private", "src/tools/publish.py",
           "    if args.private and not info.private:\n", "    if False:\n",
           "tools/test_publish.py -k private_refuses"),
    Mutant("secrets of an address", "src/tools/export_hf/card.py", "        return f\"https://{match[1]}\"\n",
           "        return url\n", "tools/test_card.py -k address"),
    Mutant("a card's commit is clean", "src/tools/export_hf/card.py",
           "git(\"status\", \"--porcelain\", \"--\", *map(str, TRACKED)) == \"\"", "True",
           "tools/test_card.py -k files_differ"),
    Mutant("a card's commit is of its model", "src/tools/export_hf/card.py",
           "metrics.get(\"val_loss\", math.nan) == record[\"best\"][\"val_loss\"]", "True",
           "tools/test_card.py -k commit_of_another"),
    Mutant("a card's parameters are of its run", "src/tools/export_hf/cli.py",
           "        if value != ran_with.get(name, value):\n", "        if False:\n",
           "tools/test_card.py -k another_run"),
    Mutant("a card's records are of its model", "src/tools/export_hf/card.py",
           "    if found != expected:\n", "    if False:\n", "tools/test_card.py -k another_run"),
    Mutant("the pre-tokenizer of a GGUF file", "src/tools/export_gguf/vocabulary.py",
           "    if cut.items() >= GPT2_PIECES.items() and ", "    if ", "tools/test_export_gguf.py -k pretokenizer"),
    Mutant("merges that only llama.cpp would do", "src/tools/export_gguf/vocabulary.py",
           "            if both and (left, right) not in merges:\n", "            if False:\n",
           "tools/test_export_gguf.py -k only_llama_cpp"),
    Mutant("one score for all merges into a token", "src/tools/export_gguf/vocabulary.py",
           "        if token != last and token in scores:\n", "        if False:\n",
           "tools/test_export_gguf.py -k far_apart"),
    Mutant("added tokens that overlap", "src/tools/export_gguf/vocabulary.py",
           "                if other != name and len(set(name + other)) > 1:\n", "                if False:\n",
           "tools/test_export_gguf.py -k finds_elsewhere"),
    Mutant("other files than GGUF are kept", "src/tools/export_gguf/cli.py", "    check_replaceable(file)\n", "",
           "tools/test_export_gguf.py -k only_a_gguf"),
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
