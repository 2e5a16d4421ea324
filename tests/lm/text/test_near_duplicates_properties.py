"""What holds for any documents: equal texts cluster, and batches, order and repetition change nothing."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lm.text.near_duplicates import NearDuplicates, find_clusters
from support.properties import check_examples

PARAMS = NearDuplicates(threshold=0.5, ngram_words=2, num_permutations=32)
WORDS = st.sampled_from(["red", "green", "blue", "Zoë", "你好", "x1", "-", "...", ""])
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=20), max_size=14)


@check_examples
@given(texts=TEXTS)
def test_equal_texts_cluster_and_a_cluster_is_its_first_document(texts):
    found = find_clusters([texts], PARAMS)
    assert found.shape == (len(texts),) and found.dtype == np.int64
    assert [found[texts.index(text)] for text in texts] == found.tolist()
    assert (found <= np.arange(len(texts))).all()
    assert (found[found] == found).all()


@check_examples
@given(texts=TEXTS, cuts=st.lists(st.integers(0, 14), max_size=4).map(sorted))
def test_the_result_does_not_depend_on_the_borders_of_batches(texts, cuts):
    borders = [0, *cuts, len(texts)]
    batches = [texts[begin:end] for begin, end in itertools.pairwise(borders)]
    assert find_clusters(batches, PARAMS).tolist() == find_clusters([texts], PARAMS).tolist()


@check_examples
@given(texts=TEXTS, data=st.data())
def test_the_order_of_documents_changes_numbers_but_no_cluster(texts, data):
    order = data.draw(st.permutations(range(len(texts))))
    found = find_clusters([texts], PARAMS)
    moved = find_clusters([[texts[i] for i in order]], PARAMS)
    together = lambda clusters: {(a, b) for a in range(len(texts)) for b in range(a) if clusters[a] == clusters[b]}  # noqa: E731
    back = np.empty_like(moved)
    back[order] = moved
    assert together(found) == together(back)
