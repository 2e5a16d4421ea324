"""The section `train` of a small run: 12 steps of 8 sequences of 16 tokens, in one micro-batch, in exact numerics."""

from lm.core.params import read_yaml
from lm.train.config import TrainParams
from support import ROOT

SMALL = {
    "seq_len": 16,
    "batch_tokens": 128,
    "micro_batch_tokens": 128,
    "warmup_steps": 2,
    "peak_lr": 0.02,
    "min_lr": 0.0,
    "schedule": "wsd",
    "decay_fraction": 0.4,
    "grad_clip": 1.0,
    "sampled_vocab_size": None,
    "ngram_buckets": None,
    "divergence_nats": None,
    "eval_tokens": 100,
    "seed": 1,
    "numerics": "exact",
    "dtype": "float32",
    "compile": False,
}


def train_params(max_steps: int = 12, log_every_steps: int = 3, **changes) -> TrainParams:
    """Return the parameters of a small run, with the fields `changes`; what SMALL lacks is as in params.yaml."""
    values = read_yaml(ROOT / "params.yaml")["train"] | SMALL | changes
    batch_tokens = values["batch_tokens"]
    lengths = {"max_tokens": max_steps * batch_tokens, "log_every_tokens": log_every_steps * batch_tokens}
    return TrainParams(**values | lengths | changes)
