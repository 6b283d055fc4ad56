"""GLSL that includes files, without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkpar import InvalidUsageError
from vkpar.vulkan.pipelines import includes


def lines(text: str) -> dict[str, tuple[str, int]]:
    """Return the file and the number that the directives give each line of expanded GLSL."""
    found, file, number = {}, "", 0
    for line in text.splitlines():
        number += 1
        if line.startswith("#line"):
            _, next_number, name = line.split(maxsplit=2)
            file, number = name.strip('"'), int(next_number) - 1
        elif not line.startswith("#extension"):
            found[line] = (file, number)
    return found


def test_every_line_keeps_its_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "parts" / "one.glsl").write_text('first\n#include "two.glsl"  // beside it\nthird\n')
    (tmp_path / "parts" / "two.glsl").write_text("in two\n# include <three.glsl>\nend of two")
    (tmp_path / "elsewhere" / "three.glsl").write_text("in three\n")
    text = '#version 450\nsecond line\n  #include "parts/one.glsl"\nfourth line\n// #include "none"\n'
    made, missing = includes.expand(text, str(tmp_path / "a.comp"), tmp_path, [tmp_path / "elsewhere"])
    assert not missing
    assert made.startswith("#version 450\n")
    where = lines(made)
    base = str(tmp_path)
    assert where["second line"] == (f"{base}/a.comp", 2)
    assert where["first"] == (f"{base}/parts/one.glsl", 1)
    assert where["in two"] == (f"{base}/parts/two.glsl", 1)
    assert where["in three"] == (f"{base}/elsewhere/three.glsl", 1)
    assert where["end of two"] == (f"{base}/parts/two.glsl", 3)
    assert where["third"] == (f"{base}/parts/one.glsl", 3)
    assert where["fourth line"] == (f"{base}/a.comp", 4)
    assert where['// #include "none"'] == (f"{base}/a.comp", 5)


def test_a_file_that_asks_to_be_included_once(tmp_path: Path) -> None:
    (tmp_path / "once.glsl").write_text("#pragma once\nbody\n")
    (tmp_path / "twice.glsl").write_text("often\n")
    text = '#include "once.glsl"\n#include "./once.glsl"\n#include "twice.glsl"\n#include "twice.glsl"\n'
    made = includes.expand(text, "a", tmp_path, [])[0].splitlines()
    assert (made.count("body"), made.count("often")) == (1, 2)
    assert not any("pragma" in line for line in made)


def test_what_cannot_be_included(tmp_path: Path) -> None:
    (tmp_path / "loop.glsl").write_text('#include "loop.glsl"\n')
    (tmp_path / "binary.glsl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidUsageError, match="include each other"):
        includes.expand('#include "loop.glsl"', "a", tmp_path, [])
    with pytest.raises(InvalidUsageError, match="is no text"):
        includes.expand('#include "binary.glsl"', "a", tmp_path, [])
    with pytest.raises(InvalidUsageError, match="cannot be read"):
        includes.read(tmp_path / "missing.comp")
    made, missing = includes.expand('x\n#include "gone.glsl"', "a", tmp_path, [])
    assert "#error an included file is not found" in made
    assert missing == [f"a:2: 'gone.glsl' is not found in {tmp_path}"]
    assert includes.expand("#include <gone.glsl>", "a", None, [])[1] == [
        "a:1: 'gone.glsl' is not found: give include_dirs"
    ]


@pytest.mark.parametrize("line", ["// #include <a>", "#included", "#include a", "int include;", '#include "a" b'])
def test_what_includes_nothing(line: str) -> None:
    assert not includes.has_includes(f"x\n{line}\n")
