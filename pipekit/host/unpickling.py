"""Reads what another process has pickled; classes that are known here stay as they are.

cloudpickle sends a class of a script or a notebook as it stands in the sender, and would give the
receiver's own class the methods and attributes of that copy, with globals that are copies, too.
"""

import io
import pickle
from collections.abc import Iterable
from typing import Any

from cloudpickle import cloudpickle


def loads(text: Any, buffers: Iterable[Any] | None = None) -> Any:
    """Return a pickled object, as :func:`pickle.loads` does."""
    return _Unpickler(io.BytesIO(text), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self._known = set(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._filled if found is cloudpickle._class_setstate else found

    def _filled(self, kind: type, state: Any) -> type:
        """Return a class with its attributes; they come with it if it is new."""
        return kind if kind in self._known else cloudpickle._class_setstate(kind, state)
