"""The run whose bits are committed, and digests of its weights: a fixed model on made-up tokens, in exact numerics.

It depends neither on params.yaml nor on any file, so its digests change only with the code that trains.
"""

import hashlib

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lm.core.params import coerce
from lm.exact.threads import ThreadTuner
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, learning_rate, prefetch, sampling_weights, update_weights

FILE = "src/tools/verify/golden_run.py"
SMALL = {
    "n_layer": 2,
    "n_head": 4,
    "n_kv_head": 2,
    "head_dim": 16,
    "d_model": 64,
    "d_ff": 192,
    "sliding_window": 64,
    "full_attention_every": 2,
    "rope_base_local": 10000.0,
    "rope_base_global": 10000.0,
    "query_pre_attn_scalar": 16,
    "norm_eps": 1e-6,
    "max_seq_len": 512,
    "vocab_size": 1000,
}
LARGE = SMALL | {
    "n_layer": 4,
    "head_dim": 48,
    "d_model": 192,
    "d_ff": 512,
    "query_pre_attn_scalar": 48,
    "vocab_size": 8192,
}
# Model, optimizer steps, sampled vocabulary, and the id that begins a document that attention does not leave. The first
# run has the operations of the default.
RUNS = {"short": (SMALL | {"sliding_window": 4}, 20, 500, None), "minute": (LARGE, 100, 2048, 0)}
NUM_BUCKETS = 512  # of n-grams of made-up spellings
SEQ_LEN = 128
UNIT_TOKENS = 512
BATCH_TOKENS = 1536
WEIGHTS_EVERY = {"short": 5, "minute": 25}  # steps from one digest of the weights to the next


def train(name: str, threads: ThreadTuner, device: torch.device) -> dict[str, str]:
    """Train the run `name` of RUNS on a device; return the digests of its weights by step.

    Raise ParamsError if this file lacks a value of a new parameter.
    """
    shape, num_steps, sampled_vocab_size, document_start_id = RUNS[name]
    config = coerce(shape, ModelConfig, "model", FILE)
    params = train_params(num_steps, sampled_vocab_size)
    model = Gemma3Model(config, params.numerics)
    model.init_weights(torch.Generator().manual_seed(params.seed))
    model.document_start_id = document_start_id
    texts = {number: str(number).encode() for number in range(config.vocab_size)}
    ngrams = NgramEmbeddings(texts, config.vocab_size, NUM_BUCKETS)
    ids = make_ids(config.vocab_size)
    model.sampling_weights = sampling_weights(ids, config.vocab_size)
    model.to(device)
    state = TrainingState(model, build_optimizers(model, params, torch.float32, ngrams=ngrams))
    windows = TokenWindows(ids, SEQ_LEN, params.batch_size, params.seed)

    digests = {}
    batches = prefetch(windows, range(num_steps), device)
    for step in tqdm(range(num_steps), unit="step", disable=None, leave=False):
        threads.adapt()
        compute_gradients(state, next(batches), params, torch.float32)
        update_weights(state, learning_rate(step, params))
        if (step + 1) % WEIGHTS_EVERY[name] == 0:
            digests[str(step + 1)] = digest(torch.cat([p.flatten() for p in model.parameters()]))
    return digests


def train_params(num_steps: int, sampled_vocab_size: int | None = None) -> TrainParams:
    """Return the parameters of a run of that many steps."""
    values = {
        "seq_len": SEQ_LEN,
        "attend_across_documents": False,
        "batch_tokens": BATCH_TOKENS,
        "micro_batch_tokens": UNIT_TOKENS,
        "max_tokens": num_steps * BATCH_TOKENS,
        "optimizer": "muon",
        "peak_lr": 0.01,
        "min_lr": 0.0,
        "warmup_steps": 5,
        "schedule": "wsd",
        "decay_fraction": 0.6,
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.99,
        "grad_clip": 1.0,
        "sampled_vocab_size": sampled_vocab_size,
        "ngram_buckets": NUM_BUCKETS,
        "numerics": "exact",
        "dtype": "auto",
        "compile": False,
        "seed": 1,
        "init_from": "",
        "divergence_nats": None,
        "log_every_tokens": 1024,
        "eval_every_tokens": 1024,
        "eval_tokens": 1024,
    }
    return coerce(values, TrainParams, "train", FILE)


def make_ids(vocab_size: int, num_tokens: int = 100_000) -> np.ndarray:
    """Return made-up, learnable ids, (num_tokens,) uint16: documents of 210 tokens, each after an id 0."""
    position = np.arange(num_tokens, dtype=np.int64)
    document = position // 211
    word = position % 211
    ids = (document * 7919 + word * word * (document % 13 + 1)) % (vocab_size - 1) + 1
    ids[word == 0] = 0
    return ids.astype(np.uint16)


def digest(tensor: Tensor) -> str:
    """Return 12 hex digits of the SHA-256 of a tensor's bytes."""
    numbers = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(numbers.data).hexdigest()[:12]
