"""Parameters by dotted name, and the presets that the selectors choose."""

SELECTORS = {
    "data.source": "sources",
    "selection.name": "selections",
    "tokenizer.name": "tokenizers",
    "model.name": "models",
}


def flatten(section: dict, prefix: str = "") -> dict[str, object]:
    """Return the leaves of nested mappings by dotted name: {"a": {"b": 1}} → {"a.b": 1}."""
    leaves = {}
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            leaves |= flatten(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


def recorded_params(lock: dict) -> dict[str, object]:
    """Return the parameters in the content of a dvc.lock by dotted name."""
    recorded = {}
    for stage in lock["stages"].values():
        for section in stage.get("params", {}).values():
            recorded |= flatten(section)
    return recorded


def selected_presets(params: dict, presets: dict) -> dict[str, dict]:
    """Return the chosen entry of each section of presets.yaml and sources.yaml: {"models.tiny": {…}, …}."""
    chosen = {book: flatten(params)[selector] for selector, book in SELECTORS.items()}
    return {f"{book}.{name}": presets[book][name] for book, name in chosen.items()}


def preset_names_left_out(params: dict) -> dict:
    """Rename models.tiny.n_layer to models.*.n_layer, so that two presets are compared field by field."""
    renamed = {}
    for name, value in params.items():
        for selector, book in SELECTORS.items():
            chosen = f"{book}.{params.get(selector)}."
            if name.startswith(chosen):
                name = f"{book}.*.{name.removeprefix(chosen)}"
        renamed[name] = value
    return renamed
