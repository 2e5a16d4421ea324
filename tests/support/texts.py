"""Texts of many lengths and scripts."""

import random


def make_texts():
    rng = random.Random(0)
    words = ["int", " main", "(void)", "\n", "  ", "é", "漢字", "\N{GRINNING FACE}", "<|endoftext|>", "\0", "x" * 50]
    texts = ["".join(rng.choices(words, k=rng.randrange(1, 200))) for _ in range(300)]
    return [text + "\ua7ce's" if i % 40 == 7 else text for i, text in enumerate(texts)]
