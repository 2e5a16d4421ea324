"""The model `reprolm` of lm-eval: an exported folder. Importing this module needs requirements/lm-eval.txt."""

from pathlib import Path

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lm.core.files import read_json
from lm.model.weights import RECORD


@register_model("reprolm")
class ExportedModel(HFLM):
    """lm-eval's model of an exported folder, in float32, in windows of the training's `seq_len`.

    Every text begins with one end-of-text id, as in training. HFLM would begin with two where it cuts a text into
    windows, and with none where the text itself begins with the name of that token.
    """

    def __init__(self, pretrained: str, **options):
        record = read_json(Path(pretrained) / RECORD, "name a folder that `python src export_hf` wrote")
        # The cache of lm-eval scores wrong tokens if a text repeats so that two of its windows are equal.
        fixed = {"dtype": "float32", "max_length": record["seq_len"], "logits_cache": False}
        super().__init__(pretrained, **options, **fixed)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options) -> list[int]:
        """Return the ids of a text, after the end-of-text id unless `add_special_tokens` is False."""
        return super().tok_encode(string, add_special_tokens is not False, **options)

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text in nats; its windows do not overlap, the last one moved back."""
        windows = []
        owners = []  # the number of each window's text
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for pair in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                context, continuation = make_disjoint_window(pair)
                windows.append((None, context, continuation))
                owners.append(number)

        sums = [0.0] * len(requests)
        for owner, (nats, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            sums[owner] += nats
        return sums
