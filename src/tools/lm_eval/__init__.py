"""The tool lm_eval: EleutherAI's lm-eval on an exported model."""
