"""Previews tell documents apart that begin with the same lines."""

from pathlib import Path

import numpy as np

from lm.tokens.tokenfile import TokenFile
from support.model_cases import write_bpe
from tools.common.preview import NUM_CHARS, previews


def test_what_all_documents_begin_with_is_skipped(tmp_path):
    tokenizer, ids, spans = write_bpe(tmp_path / "tokenizer"), [], []
    licence = "#if !defined(STABLE)\n// All rights reserved.\n"
    for text in (f"{licence}#include `a`\n  int  x;\n", f"{licence}\n#include <b>\n{'long ' * 40}", licence, ""):
        own = [*tokenizer.encode(text), tokenizer.eot_id]
        spans.append((len(ids), len(ids) + len(own)))
        ids += own
    tokens = TokenFile(Path(), np.array(ids), {"tokenizer": {"eot_id": tokenizer.eot_id}})
    shown = previews(tokens, tokenizer, np.array(spans))
    assert shown[0] == "#include 'a' int x;" and shown[1].startswith("#include <b> long")
    assert len(shown[1]) == NUM_CHARS and shown[1].endswith("…")
    assert shown[2].startswith("#if !defined(STABLE) // All rights") and shown[3] == ""
