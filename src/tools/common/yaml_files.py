"""Change files of parameters, and keep their comments."""

from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter


class NullRepresenter(RoundTripRepresenter):
    """Write null as `null`; ruamel.yaml would leave the value empty."""


NullRepresenter.add_representer(
    type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
)


def comment_keeping_yaml() -> YAML:
    """Return the reader and writer that keeps comments, quotes and the order of keys."""
    editor = YAML(typ="rt")
    editor.preserve_quotes = True
    editor.width = 1 << 20  # never break a line
    editor.Representer = NullRepresenter
    return editor
