# pyarrow makes the functions of this module when it is imported, so that a type checker sees none of them.
from typing import Any

def __getattr__(name: str) -> Any: ...
