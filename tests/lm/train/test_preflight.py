"""What is said about a run before it starts: its size, the memory it needs, suspicious settings."""

import pytest

from lm.core.errors import EnvironmentFailure
from lm.core.params import coerce, read_yaml
from lm.model.gemma3 import MAX_LOGITS, ModelConfig, count_parameters, flops_per_token
from lm.train.config import TrainParams
from lm.train.preflight import Plan, block_matrices, estimate_memory_bytes, refuse_too_large, warnings
from support import ROOT
from support.workspace import MICRO_MODEL

STEPS = {"seq_len": 32, "batch_tokens": 256, "micro_batch_tokens": 128, "max_tokens": 25700, "warmup_steps": 2}
STEPS |= {"keep_weights_at": [], "optimizer": "adamw", "sampled_vocab_size": None}


def model_config(vocab_size: int = 50, **changes) -> ModelConfig:
    return ModelConfig(**MICRO_MODEL | changes, vocab_size=vocab_size)


def plan_of(train_tokens: int = 3200, **changes) -> tuple[Plan, TrainParams]:
    """Return the plan of a run of 100 steps of 256 tokens, and its parameters."""
    values = read_yaml(ROOT / "params.yaml")["train"] | STEPS | changes
    params = coerce(values, TrainParams, "train", "file")
    return Plan(params, model_config(), train_tokens, params.micro_batch_tokens), params


def test_a_plan_counts_tokens_epochs_and_work():
    plan, _ = plan_of()
    assert (plan.max_steps, plan.max_tokens, plan.epochs) == (100, 25600, 8.0)
    assert plan.num_parameters == count_parameters(model_config())["total"]
    per_token = flops_per_token(model_config(), 32, None)["total"]
    assert (plan.flops_per_token, plan.flops_per_step) == (per_token, 256 * per_token)
    muon, _ = plan_of(optimizer="muon")
    assert muon.flops_per_step == 256 * per_token + muon.muon_flops_per_step > 256 * per_token


def test_the_matrices_of_a_block_have_its_parameters():
    """Weights of a block that are no matrices: four gains of d_model, and those of queries and keys."""
    config = model_config()
    in_matrices = config.n_layer * sum(rows * columns for rows, columns in block_matrices(config))
    gains = config.n_layer * (4 * config.d_model + 2 * config.head_dim) + config.d_model
    assert in_matrices + gains + 50 * config.d_model == count_parameters(config)["total"]


def test_more_than_eight_epochs_are_warned_of():
    assert [len(warnings(*plan_of(train_tokens), model_config())) for train_tokens in (3200, 3199)] == [0, 1]
    assert "8.0 epochs" in warnings(*plan_of(3199), model_config())[0]


def test_a_window_that_no_layer_needs_is_warned_of():
    plan, params = plan_of()
    for window, warned in ((31, False), (32, True)):
        found = warnings(plan, params, model_config(sliding_window=window))
        assert any("sliding attention is never active" in each for each in found) == warned


def test_the_memory_of_a_step_is_within_the_estimate():
    """Five copies of the weights in float32, and the logits of a chunk, with their gradient and softmax."""
    config, tokens = model_config(4000), 1024
    num_parameters = count_parameters(config)["total"]
    estimate = estimate_memory_bytes(num_parameters, config, tokens, 32)
    assert estimate > 20 * num_parameters + 12 * tokens * 4000
    # The logits of all tokens never exist at once.
    many = estimate_memory_bytes(0, model_config(2**18), 2**20, 32) - estimate_memory_bytes(
        0, model_config(1), 2**20, 32
    )
    assert many < 12 * MAX_LOGITS + 4 * 2**18 * config.d_model


def test_the_estimate_of_memory_counts_shards():
    config = model_config()
    whole, part = (estimate_memory_bytes(10**9, config, 128, 64, shards) for shards in (1, 8))
    assert whole / 8 <= part < whole / 7
    # Every rank gathers the whole head, and its gradient.
    whole, part = (estimate_memory_bytes(0, model_config(10**6), 128, 64, shards) for shards in (1, 8))
    assert part - whole >= 2 * 4 * 10**6 * config.d_model


def test_a_run_is_refused_if_it_needs_more_than_is_free():
    plan, _ = plan_of()
    refuse_too_large(plan, plan.memory_bytes)
    with pytest.raises(EnvironmentFailure, match=r"lower train\.micro_batch_tokens"):
        refuse_too_large(plan, plan.memory_bytes - 1)
