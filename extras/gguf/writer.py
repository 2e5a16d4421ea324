"""Write a Gemma 3 as llama.cpp's architecture gemma3; importing this module needs requirements/gguf.txt."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from extras.gguf.reader import open_gguf
from extras.gguf.vocabulary import Vocabulary
from lm.core.errors import DataError
from lm.core.files import atomic_write
from lm.model.gemma3 import Gemma3Model, ModelConfig
from tools.export_hf.hugging_face import check_reader, to_hugging_face

ARCHITECTURE = gguf.MODEL_ARCH.GEMMA3
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16}


def write_gguf(path: Path, model: Gemma3Model, vocabulary: Vocabulary, dtype: str) -> None:
    """Write a model and its vocabulary as one file, all or nothing; matrices have `dtype`, "f32" or "f16".

    Raise IntegrityError if a reader computes other losses from it than this project's code from the same weights.
    """
    with atomic_write(path) as file:
        writer = gguf.GGUFWriter(file.name, gguf.MODEL_ARCH_NAMES[ARCHITECTURE])
        writer.add_file_type(FILE_TYPES[dtype])
        add_shape(writer, model.config)
        add_vocabulary(writer, vocabulary)
        for name, weight in llama_tensors(model, dtype):
            writer.add_tensor(name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        check_reader(path, as_stored(model, dtype), open_gguf(Path(file.name)), vocabulary.eot_id)


def as_stored(model: Gemma3Model, dtype: str) -> Gemma3Model:
    """Return the model with matrices that are rounded as in the file."""
    if dtype == "f32":
        return model
    rounded = Gemma3Model(model.config, model.numerics)
    weights = model.state_dict()
    rounded.load_state_dict({name: w.half().float() if w.ndim == 2 else w for name, w in weights.items()})
    rounded.document_start_id = model.document_start_id
    return rounded


def add_shape(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Add what llama.cpp reads of a gemma3; it takes the size of the vocabulary from the list of tokens."""
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_head)
    writer.add_head_count_kv(config.n_kv_head)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_base_global)
    slides = [not config.is_full(layer) for layer in range(config.n_layer)]
    if any(slides):  # else llama.cpp would abort
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern(slides)  # without it readers take every sixth layer for a full one
        writer.add_rope_freq_base_swa(config.rope_base_local)
        writer.add_float32(f"{writer.arch}.rope.local.freq_base", config.rope_base_local)  # Ollama's name of it


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    """Add the tokenizer; a text begins with the end-of-text id, as in training."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    for add_special in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add_special(vocabulary.eot_id)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)


def llama_tensors(model: Gemma3Model, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each weight under its name in llama.cpp, whose norms multiply by the weight instead of 1 + weight.

    Raise DataError for a weight that `dtype` cannot hold.
    """
    names = gguf.get_tensor_name_map(ARCHITECTURE, model.config.n_layer)
    for theirs, weight in to_hugging_face(model.state_dict()).items():
        array = weight.numpy()
        if array.ndim == 1:
            array = 1 + array
        elif dtype == "f16":
            if np.abs(array).max() > LARGEST_FLOAT16:
                problem = f"{theirs} has a weight beyond {LARGEST_FLOAT16:,.0f}, which float16 cannot hold"
                raise DataError(f"{problem}; export it with --dtype f32")
            array = array.astype(np.float16)
        if theirs.endswith("q_norm.weight"):
            array = array * np.float32(query_gain(model.config))
        yield names.get_name(theirs, try_suffixes=(".weight",)), array


def query_gain(config: ModelConfig) -> float:
    """Return the factor of queries, which llama.cpp divides by √head_dim (but not in a model of 62 layers)."""
    return (config.head_dim / config.query_pre_attn_scalar) ** 0.5
