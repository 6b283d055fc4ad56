"""GLSL with characters that are no ASCII, and what macros stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vkpar.errors import InvalidUsageError, ShaderCompileError
from vkpar.vulkan.pipelines.source import compiled

HEAD = "#version 450\nlayout(local_size_x = 1) in;\nlayout(binding = 0) buffer A { float a[]; };\n"
EMPTY = HEAD + "void main() { a[0] = 1.0; }\n"


@pytest.fixture(autouse=True)
def _needs_a_compiler(compiler: None) -> None:
    """Skip every test of this file where there is no compiler."""


def _made(source: str | Path, folders: tuple[Path, ...] = (), **defines: object) -> bytes:
    return compiled(source, "main", defines, list(folders))[0]


@pytest.mark.parametrize(
    "text",
    ["a[0] = 2.0 \u2212 1.0;", "float \u00e9 = 1.0;", "\U0001f389", "a[0] = 1.0\u00a0;", "a[0] = 1.0 \ufeff;"],
)
def test_characters_that_glsl_does_not_know(text: str, tmp_path: Path) -> None:
    source = HEAD + f"/* \u00fc */ void main() {{ {text} }}"
    path = tmp_path / "k.comp"
    path.write_text(source, encoding="utf-8")
    odd = next(character for character in text if ord(character) > 127)
    for given in (source, path):
        with pytest.raises(ShaderCompileError, match=rf"outside of comments it is ASCII.*U\+{ord(odd):04X}"):
            _made(given)


@pytest.mark.parametrize("text", ["\udcff", "#error \u2212 \u00e9 \U0001f389\n", "a[0] = X;"])
def test_messages_with_any_characters(text: str) -> None:
    with pytest.raises(ShaderCompileError, match="GLSL does not compile"):
        _made(HEAD + f"void main() {{\n{text}\n}}", X="1 \u2212 \udcff")


def test_comments_may_have_any_characters() -> None:
    assert _made(EMPTY + "// \u00e9 \u2212 \u6f22 \U0001f389\n/* \u00fc */\n") == _made(EMPTY)


def test_a_mark_of_byte_order_is_no_part_of_the_text(tmp_path: Path) -> None:
    path, whole, part = tmp_path / "k.comp", tmp_path / "\u00e9 whole.comp", tmp_path / "part.glsl"
    path.write_text(EMPTY, encoding="utf-8-sig")
    part.write_text("void main() { a[0] = 1.0; }\n", encoding="utf-8-sig")
    whole.write_text(HEAD + '#include "part.glsl"\n', encoding="utf-8-sig")
    want = _made(EMPTY)
    assert _made("\ufeff" + EMPTY) == want
    assert _made(path)
    assert _made(whole)
    assert _made("\ufeff" + HEAD + '#include "part.glsl"\n', (tmp_path,))


@pytest.mark.parametrize(("value", "truth"), [(True, True), (False, False), (np.True_, True), (np.False_, False)])
def test_truth_values_are_such_everywhere(value: object, truth: bool) -> None:
    want = _made(HEAD + f"void main() {{ a[0] = {'3.0' if truth else '2.0'}; }}")
    assert _made(HEAD + "void main() { a[0] = X ? 3.0 : 2.0; }", X=value) == want
    chosen = "#if X\nvoid main() { a[0] = 3.0; }\n#elif !X\nvoid main() { a[0] = 2.0; }\n#endif\n"
    assert _made(HEAD + chosen, X=value) == want
    constant = HEAD + "layout(constant_id = 0) const bool B = X; void main() { a[0] = B ? 3.0 : 2.0; }"
    assert _made(constant, X=value) == _made(constant.replace("X", str(truth).lower()))


@pytest.mark.parametrize(
    ("value", "want"), [(3, "3"), (1.5, "1.5"), (np.float32(2.5), "2.5"), ("7", "7"), (1e-5, "1e-05")]
)
def test_numbers_and_texts_stand_as_they_are(value: object, want: str) -> None:
    assert _made(HEAD + "void main() { a[0] = X; }", X=value) == _made(HEAD + f"void main() {{ a[0] = {want}; }}")


@pytest.mark.parametrize("value", [None, "a\0b"])
def test_macros_without_a_text(value: object) -> None:
    with pytest.raises(InvalidUsageError, match="defines: 'X' stands for a number, a truth value or a text"):
        _made(EMPTY, X=value)
