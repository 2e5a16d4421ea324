# pyarrow has no type information: compiled modules define its classes, and compute makes its functions when it is
# imported. A type checker that reads its sources reports attributes that exist.
from typing import Any

def __getattr__(name: str) -> Any: ...
