"""Weights of files: which tensors there are, and each of them read only where it is needed."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from vkpar.errors import WeightsError
from vkpar.parallel.files import gguf_file, safetensors_file
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.files.mapped import MappedFile, small
from vkpar.unpickled import Closable

_Default = TypeVar("_Default")
_Read = tuple[dict[str, LazyTensor], dict[str, Any]]

_INDEX: Final = "*.safetensors.index.json"
_MOST_INDEX: Final = 100_000_000  # bytes


class Weights(Closable, Mapping[str, LazyTensor]):
    """The tensors of a model's files by name; see :func:`open_weights`. It is a context manager.

    Attributes:
        path: what was opened.
        metadata: GGUF's keys with their values (numbers, texts, NumPy arrays of numbers, lists of texts), or the texts
            that safetensors files carry.

    Examples:
        >>> with vkpar.parallel.open_weights(folder) as weights:
        ...     "model.norm.weight" in weights, "another" in weights
        (True, False)
    """

    def __init__(
        self, path: str, files: list[MappedFile], tensors: dict[str, LazyTensor], metadata: dict[str, Any]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self._files = files
        self._tensors = tensors

    def __getitem__(self, name: str) -> LazyTensor:
        """Return a tensor.

        Raises:
            WeightsError: there is none of that name; the message has those that are spelt alike.
        """
        try:
            return self._tensors[name]
        except KeyError:
            raise WeightsError(f"is not there; {alike(name, self._tensors)}", self.path, name) from None

    @overload
    def get(self, key: str, /) -> LazyTensor | None: ...
    @overload
    def get(self, key: str, /, default: LazyTensor | _Default) -> LazyTensor | _Default: ...
    def get(self, key: str, /, default: Any = None) -> Any:
        """Return a tensor, or ``default`` where there is none of that name."""
        return self._tensors.get(key, default)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def nbytes(self) -> int:
        """Bytes that all tensors take in their files."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def close(self) -> None:
        """Unmap the files, once the arrays over them are gone; a second call does nothing."""
        for file in self._files:
            file.close()

    def __repr__(self) -> str:
        return f"<vkpar.parallel.Weights of {len(self)} tensors, {self.path}>"


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """Open a model's weights without reading them: files are mapped into memory, and their headers checked.

    Args:
        path: a safetensors or GGUF file, or a folder with one, or with several safetensors files and their index as
            transformers saves them. Of a GGUF model in several files any of them, or their folder.

    Raises:
        WeightsError: no such file or folder, one without weights, a file that is damaged, cut off or not what it says,
            or one with a tensor of a type that vkpar does not read. The message names the file and the tensor.

    Examples:
        >>> with vkpar.parallel.open_weights(folder) as weights:
        ...     weights["model.norm.weight"].dtype.name
        'float32'
    """
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise WeightsError(f"expected the path of a file or folder, not {path!r}")
    where = Path(path)
    folder = where.is_dir()
    found = _files_of(where) if folder else [where]
    files: list[MappedFile] = []
    tensors: dict[str, LazyTensor] = {}
    metadata: dict[str, Any] = {}
    try:
        for name, (read, of_file) in _read(found, files).items():
            for twice in tensors.keys() & read.keys():
                raise WeightsError(f"is in {tensors[twice].source}, too: the folder holds two models", str(name), twice)
            tensors |= read
            metadata = of_file | metadata
        if folder:
            _check_index(where, tensors)
    except BaseException:
        for file in files:
            file.close()
        raise
    return Weights(str(where), files, tensors, metadata)


def alike(name: str, names: Iterable[str]) -> str:
    """Return what to say beside a name that is not there: names that are spelt alike, or some that are there."""
    names = list(names)
    near = difflib.get_close_matches(name, names, 3, 0.6)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    some = ", ".join(map(repr, names[:5]))
    return f"there are {len(names)} tensors: {some}{', ...' if len(names) > 5 else ''}" if names else "there are none"


def _read(found: list[Path], files: list[MappedFile]) -> dict[Path, _Read]:
    """Return what files have, and the other parts of a GGUF model of which the first is one; ``files`` gets all."""

    def read(name: Path) -> _Read:
        files.append(MappedFile(name))
        return _tensors_of(files[-1])

    known = {name: read(name) for name in found}
    parts = gguf_file.parts_of(found[0], known[found[0]][1])
    if len(parts) > 1:
        known = {name: known[name] if name in known else read(name) for name in parts}
    if len(known) > 1 and found[0].suffix == ".gguf":
        gguf_file.check_parts(known)
    return known


def _tensors_of(file: MappedFile) -> _Read:
    if file.path.endswith(".gguf") or file.map[:4] == gguf_file.MAGIC:
        return gguf_file.tensors_of(file)
    return safetensors_file.tensors_of(file)


def _files_of(folder: Path) -> list[Path]:
    """Return a folder's files of weights: those that its index names, else all of one kind."""
    indices = sorted(folder.glob(_INDEX))
    if len(indices) > 1:
        names = ", ".join(index.name for index in indices)
        raise WeightsError(f"has {len(indices)} indices ({names}): name the files of one model", str(folder))
    if indices:
        return [folder / name for name in sorted(set(_index(indices[0]).values()))]
    for pattern in ("*.safetensors", "*.gguf"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1 and pattern == "*.gguf" and found != gguf_file.named_parts(found[0]):
            raise WeightsError(f"has {len(found)} GGUF files: name one, such as {found[0].name}", str(folder))
        if found:
            return found
    raise WeightsError("has neither *.safetensors nor *.gguf: give the folder or file of a model", str(folder))


def _index(path: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index says; each lies in the index's own folder."""
    try:
        found = json.loads(small(path, _MOST_INDEX).decode("utf-8"))["weight_map"]
        names = set(found.values())
    except WeightsError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"is no index of safetensors files: {error!r}", str(path)) from error
    for name in names:
        if not isinstance(name, str) or not name.endswith(".safetensors") or "/" in name or "\0" in name:
            raise WeightsError(f"names {name!r}, which is no safetensors file of the same folder", str(path))
    return dict(found)


def _check_index(folder: Path, tensors: Mapping[str, LazyTensor]) -> None:
    for path in folder.glob(_INDEX):
        for name, file in _index(path).items():
            if name not in tensors or Path(tensors[name].source).name != file:
                raise WeightsError(
                    f"is not in {file}, where {path.name} has it: fetch that file again", str(folder), name
                )
